package syntax

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unique"
)

// Bounds of the language.
const (
	MaxLine = 65535 // bytes
	MaxVLAN = 4094  // IEEE 802.1Q: 0 means no VLAN, 4095 is reserved
)

// A Pos is a place in a file. The zero Pos is no place. Two places are equal when
// they name the same file, line and column, whichever Config they come from.
type Pos struct {
	file unique.Handle[string]
	line uint32
	col  uint16
}

// At returns the place of a column in a line, both counted from 1.
func At(file unique.Handle[string], line, col int) Pos {
	return Pos{file, uint32(line), uint16(min(col, MaxLine))}
}

// Plus returns the place off bytes further on the line.
func (p Pos) Plus(off uint16) Pos {
	p.col += off
	return p
}

// Valid reports whether p is a place at all.
func (p Pos) Valid() bool { return p.line > 0 }

// File returns the name of the file as it was opened.
func (p Pos) File() string {
	if !p.Valid() {
		return ""
	}
	return p.file.Value()
}

// Line returns the line, counted from 1.
func (p Pos) Line() int { return int(p.line) }

// Column returns the column in bytes, counted from 1.
func (p Pos) Column() int { return int(p.col) }

// String returns file:line:column, the form that compilers print.
func (p Pos) String() string {
	if !p.Valid() {
		return "-"
	}
	return fmt.Sprintf("%s:%d:%d", p.file.Value(), p.line, p.col)
}

// An Error is what is wrong at one place.
type Error struct {
	Pos Pos
	Msg string
}

// Error returns file:line:column: message.
func (e Error) Error() string { return e.Pos.String() + ": " + e.Msg }

// Errors are all the errors of a configuration in the order of the files, never
// empty when returned. Find them with errors.As: they mean that the files were
// read and are wrong (EX_DATAERR of sysexits(3)).
type Errors []Error

// shown is how many errors are worth reading at once.
const shown = 20

// Error returns the first 20 errors, one a line, and how many more there are.
func (e Errors) Error() string {
	var b strings.Builder
	for i, err := range e[:min(len(e), shown)] {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(err.Error())
	}
	if more := len(e) - shown; more == 1 {
		b.WriteString("\nand 1 more error")
	} else if more > 1 {
		fmt.Fprintf(&b, "\nand %d more errors", more)
	}
	return b.String()
}

// SortErrors orders e by file, as first read, line and column.
func SortErrors(e []Error, files []unique.Handle[string]) {
	order := make(map[unique.Handle[string]]int, len(files))
	for i, f := range files {
		if _, ok := order[f]; !ok {
			order[f] = i
		}
	}
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(
			cmp.Compare(order[a.Pos.file], order[b.Pos.file]),
			cmp.Compare(a.Pos.line, b.Pos.line),
			cmp.Compare(a.Pos.col, b.Pos.col))
	})
}
