package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestStartScript runs the rc.d script with a daemon(8) that tells its arguments.
func TestStartScript(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	text, err := os.ReadFile("../../contrib/rc.d/nmfwd")
	if err != nil {
		t.Fatal(err)
	}
	tell := write(t, "tell", `#!/bin/sh
for a; do printf '<%s>' "$a"; done
echo
`)
	if err := os.Chmod(tell, 0o755); err != nil {
		t.Fatal(err)
	}
	// What rc.subr(8) does of all that the script uses.
	subr := write(t, "rc.subr", `
load_rc_config() { eval "$NMFWD_RC_CONF"; }
check_startmsgs() { false; }
run_rc_command() { eval "\$${1}_precmd" && eval "\$${1}_cmd"; }
`)
	script := strings.NewReplacer("/etc/rc.subr", subr, "/usr/sbin/daemon", tell, "/usr/local/sbin/nmfwd", tell).Replace(string(text))
	script = write(t, "nmfwd", script)
	const run = "<-f><-p></var/run/nmfwd.pid>"
	for _, c := range []struct{ name, conf, want string }{
		{"syslog", ``, run + "<-S><-T><nmfwd><NMFWD><-c></usr/local/etc/nmfwd/routes.conf>"},
		{"a file that is opened again when it was rotated", `nmfwd_logfile=/var/log/nmfwd.log`,
			run + "<-H><-o></var/log/nmfwd.log><-P></var/run/nmfwd-daemon.pid><NMFWD><-c></usr/local/etc/nmfwd/routes.conf>"},
		{"names with blanks, and flags", `nmfwd_logfile="/var/log/my log" nmfwd_config="/etc/my file" nmfwd_flags="--debug --status"`,
			run + "<-H><-o></var/log/my log><-P></var/run/nmfwd-daemon.pid><NMFWD><-c></etc/my file><--debug><--status>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(sh, script, "start")
			cmd.Env = append(os.Environ(), "NMFWD_RC_CONF="+c.conf)
			out, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n") // the check, then the start
			if got := strings.ReplaceAll(lines[len(lines)-1], tell, "NMFWD"); err != nil || got != c.want {
				t.Errorf("%v: got\n%s\nwant\n%s", err, out, c.want)
			}
		})
	}
}
