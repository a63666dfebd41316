package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"nmfwd/config"
	"nmfwd/router"
	"nmfwd/system/nic"
	"nmfwd/system/routes"
)

type checkCmd struct {
	Config string `short:"c" required:"" placeholder:"FILE" help:"The configuration, routes.conf."`
}

// Run prints the report of a start without starting. Its error is what would
// keep nmfwd from starting.
func (c *checkCmd) Run() error {
	cfg, err := loadConfig(c.Config)
	if err != nil {
		return err
	}
	warn(cfg.Warnings)
	if err := resolve(cfg, kernelAddrs); err != nil {
		return err
	}
	sys, err := nic.Open()
	if err != nil {
		return err
	}
	defer sys.Close()
	f := foresee(cfg, sys)
	if len(cfg.Ports) == 0 {
		return noPorts(c.Config)
	}
	if err := f.Write(os.Stdout); err != nil {
		return err
	}
	if cfg.Options.Routes == config.KernelRoutes {
		_, r, err := router.ReadRoutes(cfg)
		if err != nil {
			return err
		}
		fmt.Printf("routes of the system: %d IPv4, %d IPv6; of these the host's to follow: %d\n", r.Routes[0], r.Routes[1], r.Host)
		for o, n := range r.Odd {
			if n > 0 {
				fmt.Printf("routes of the system: %d not followed by ports: %v, %s\n", n, routes.Odd(o), routes.Odd(o).Then())
			}
		}
	}
	err = f.Err()
	if err != nil && exitCode(err) == exOSErr {
		err = coded{exUnavailable, err}
	}
	return err
}

type restoreCmd struct {
	Ports []string `arg:"" name:"port" help:"The ports, as in routes.conf."`
}

// Run gives ports the settings back that an nmfwd changed that was killed. What is
// wrong with one keeps none of the others from it.
func (c *restoreCmd) Run() error {
	sys, err := nic.Open()
	if err != nil {
		return err
	}
	defer sys.Close()
	var errs []error
	for _, port := range c.Ports {
		errs = append(errs, restore(sys, port))
	}
	return errors.Join(errs...)
}

func restore(sys nic.System, port string) error {
	set, err := nic.Restore(sys, "", port)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fmt.Printf("%s: nothing to restore: no nmfwd has left settings changed\n", port)
		return nil
	case errors.Is(err, nic.ErrBusy):
		return coded{exUnavailable, err}
	case err != nil:
		return err
	case len(set) == 0:
		fmt.Printf("%s: nothing to restore: all settings are as they were before nmfwd\n", port)
		return nil
	}
	fmt.Printf("%s: restored, as by: %s\n", port, tools.Settings(port, set))
	return nil
}
