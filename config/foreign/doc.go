// Package foreign turns arguments of route(8), ifconfig(8), arp(8) and ndp(8) into
// lines of routes.conf: for the import of other configurations, and for messages
// about lines that were written in their manner.
package foreign
