// Command nmfwd forwards IPv4 and IPv6 packets between network ports in user
// space, over netmap or AF_XDP.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"nmfwd/cmd/nmfwd/show"
	"nmfwd/config"
	"nmfwd/config/rcconf"
	"nmfwd/dataplane/netmap"
	"nmfwd/router"
)

type cli struct {
	Run     runCmd           `cmd:"" default:"withargs" help:"Forward packets. This is the default."`
	Check   checkCmd         `cmd:"" help:"Say what a start would find on this machine, and how to mend it; nothing is opened or changed."`
	Restore restoreCmd       `cmd:"" help:"Give ports back the settings that they had before an nmfwd that was killed."`
	Show    showCmd          `cmd:"" help:"Show what a running nmfwd does."`
	Reload  reloadCmd        `cmd:"" help:"Have a running nmfwd read its configuration again, and wait for the result."`
	Sync    syncCmd          `cmd:"" help:"Wait until a running nmfwd uses all routes, neighbors and links that the system had before."`
	Explain explainCmd       `cmd:"" help:"Say step by step what would become of a frame, and why; no port is opened."`
	Import  importCmd        `cmd:"" help:"Print the routes.conf that another system's configuration means."`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

type importCmd struct {
	RC importRC `cmd:"" name:"rc.conf" help:"Translate a FreeBSD rc.conf, or sysrc lines."`
}

type importRC struct {
	File string `arg:"" help:"The rc.conf; - for standard input."`
}

// Exit codes, those of sysexits(3).
const (
	exUsage       = 64 // the command line is wrong
	exDataErr     = 65 // the configuration is wrong
	exNoInput     = 66 // there is no such file
	exUnavailable = 69 // the system lacks something that may come: an interface, an address
	exOSErr       = 71 // the system refused something
	exNoPerm      = 77 // not permitted
	exConfig      = 78 // the kernel lacks something or speaks another version
)

// A coded error ends the program with an exit code of its own.
type coded struct {
	code int
	err  error
}

func (e coded) Error() string { return e.err.Error() }
func (e coded) Unwrap() error { return e.err }

// A told error has been written already.
type told struct{ error }

func (e told) Unwrap() error { return e.error }

// inFile reports whether err is about lines of the configuration.
func inFile(err error) bool {
	var errs config.Errors
	var one config.Error
	return errors.As(err, &errs) || errors.As(err, &one)
}

// exitCode returns the code that err ends the program with.
func exitCode(err error) int {
	var c coded
	var s *show.Error
	if u := (router.Unavailable{}); errors.As(err, &u) {
		err = coded{exUnavailable, err}
	}
	if i := (router.Invalid{}); errors.As(err, &i) {
		err = coded{exDataErr, err}
	}
	switch {
	case errors.As(err, &s):
		return s.Code
	case inFile(err) && errors.As(err, &c): // the file asks for what the system lacks
		return c.code
	case inFile(err):
		return exDataErr
	case errors.Is(err, fs.ErrPermission):
		return exNoPerm
	case errors.Is(err, netmap.ErrVersion), errors.Is(err, errors.ErrUnsupported):
		return exConfig
	case errors.As(err, &c):
		return c.code
	}
	return exOSErr
}

// release is set when the program is linked, by the Makefile.
var release string

// version returns the release, or else what the Go tool knows of the source.
func version() string {
	if release != "" {
		return release
	}
	v := "unknown"
	if b, ok := debug.ReadBuildInfo(); ok {
		v = b.Main.Version
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" && v == "(devel)" {
				v = s.Value
			}
		}
	}
	return v
}

func main() {
	var c cli
	parser := kong.Must(&c,
		kong.Name("nmfwd"),
		kong.Description("nmfwd forwards IPv4 and IPv6 packets between network ports in user space, over netmap or AF_XDP."),
		kong.Vars{"version": "nmfwd " + version()},
	)
	ctx, err := parser.Parse(os.Args[1:])
	if err == nil {
		err = once(ctx)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nmfwd: %v\nTry \"nmfwd --help\".\n", err)
		os.Exit(exUsage)
	}
	if err := ctx.Run(); err != nil {
		if !errors.As(err, new(told)) {
			complain(os.Stderr, err)
		}
		os.Exit(exitCode(err))
	}
}

// complain writes the error that ends the program.
func complain(w io.Writer, err error) {
	var s *show.Error
	if inFile(err) || errors.As(err, &s) && s.Code == exDataErr {
		fmt.Fprintln(w, err) // begins with the place, as a compiler's
	} else {
		fmt.Fprintf(w, "nmfwd: %v\n", err)
	}
}

// once returns an error if a flag with a single value is given twice: kong
// would take the last.
func once(ctx *kong.Context) error {
	seen := make(map[*kong.Flag]bool)
	for _, p := range ctx.Path {
		if f := p.Flag; f != nil && !f.IsBool() && !f.IsCumulative() {
			if seen[f] {
				return fmt.Errorf("--%s is given twice", f.Name)
			}
			seen[f] = true
		}
	}
	return nil
}

// warn prints warnings about a configuration.
func warn(warnings []config.Error) {
	for _, w := range warnings {
		fmt.Fprintf(os.Stderr, "%v: warning: %s\n", w.Pos, w.Msg)
	}
}

// Run prints the translation and, on standard error, what could not be
// translated.
func (c *importRC) Run() error {
	data, err := readFile(c.File)
	if err != nil {
		return coded{exNoInput, err}
	}
	text, warnings, err := rcconf.Import(c.File, data)
	if err != nil {
		return err
	}
	warn(warnings)
	_, err = os.Stdout.Write(text)
	return err
}
