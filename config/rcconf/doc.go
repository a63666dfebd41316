// Package rcconf translates rc.conf(5), FreeBSD's configuration of the system,
// into a routes.conf. It reads the file as sh(1) would, without running anything.
package rcconf
