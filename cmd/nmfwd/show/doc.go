// Package show is the control socket: a stream socket of the Unix domain at which
// a running nmfwd says what it does and takes commands.
//
// A client sends one line, the request, and reads the answer:
//
//	nmfwd/1 routes 10.0.0.0/8 --longer --json\n
//
//	+N\n and N bytes      a part of the answer, in order; N may be 0
//	.\n                   the end of an answer that is complete
//	-CODE N\n and N bytes the end after an error: an exit code of sysexits(3) and
//	                      what to say
//
// The answer is text for people or, with --json, one JSON object a line. What is
// long is sent while it is read, in parts: nobody keeps all of it. A client that
// does not read in time is cut off, and there are only so many clients.
//
// Each connection is served by a goroutine of its own. What belongs to control it
// asks control for, in short questions; counters it reads as the metrics do. No
// worker knows of any of this.
package show
