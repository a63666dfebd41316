// Package syntax has what the language of routes.conf is made of: places in
// files, errors at places, and the values that a word can be. It knows no
// directive. Functions that return a string last return what is wrong with the
// word, or nothing.
package syntax
