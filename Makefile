# Targets are few; "make help" lists them. Those that touch the network make
# namespaces of their own and need root.

GO       ?= go
RUNNER   ?=
GOOS     ?= linux
GOARCH   ?= amd64
FUZZTIME ?= 10s
PREFIX   ?= /usr/local
TAGS     := integration,netmap
VERSION  := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
STATIC   := CGO_ENABLED=0 GOOS=$(GOOS) GOARCH=$(GOARCH)

.PHONY: help build install setup lab test check lint cross race fuzz soak bench test-netmap clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: ## build bin/nmfwd
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.release=$(VERSION)' -o bin/nmfwd ./cmd/nmfwd

install: build ## install nmfwd, its manual pages and the system's start script under $(PREFIX)
	install -d $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/etc/nmfwd
	install -m 755 bin/nmfwd $(DESTDIR)$(PREFIX)/sbin/nmfwd
	install -m 644 contrib/man/routes.conf.5 $(DESTDIR)$(PREFIX)/share/man/man5/routes.conf.5
	install -m 644 contrib/man/nmfwd.8 $(DESTDIR)$(PREFIX)/share/man/man8/nmfwd.8
	@case "$$($(GO) env GOOS)" in \
	freebsd) from=contrib/rc.d/nmfwd to=$(DESTDIR)$(PREFIX)/etc/rc.d mode=755 ;; \
	linux) from=contrib/systemd/nmfwd.service to=$(DESTDIR)$(PREFIX)/lib/systemd/system mode=644 ;; \
	*) exit 0 ;; \
	esac; set -x; install -d "$$to" && sed 's|/usr/local/|$(PREFIX)/|g' "$$from" >"$$to/$${from##*/}" && chmod "$$mode" "$$to/$${from##*/}"

setup: ## install what the lab and the tests need (Debian packages, Go modules)
	test/setup

lab: setup build ## run the APU2 lab in network namespaces over AF_XDP (root)
	$(GO) run ./test/lab -nmfwd bin/nmfwd

test: setup ## run all tests, those in network namespaces too (root)
	$(GO) test -tags integration -timeout 10m ./...

check: lint cross race fuzz ## all checks of the code: format, vet, staticcheck, race detector, fuzzing, benchmarks once
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...

lint: ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -s -l .)" || { gofmt -s -d . ; exit 1; }
	$(GO) vet -tags $(TAGS) ./...
	$(GO) tool staticcheck -checks all -tags $(TAGS) ./...

cross: ## vet for every system and processor that nmfwd is for, build for darwin
	@for os in linux freebsd; do for arch in amd64 arm64 386; do \
		echo "vet $$os/$$arch"; CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) vet -tags $(TAGS) ./... || exit 1; \
	done; done
	GOOS=darwin GOARCH=arm64 $(GO) build ./...

race: ## run the tests with the race detector
	$(GO) test -race -short -timeout 15m ./...

fuzz: ## run every fuzz target for FUZZTIME
	@$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r p; do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "fuzz $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$p || exit 1; \
		done; \
	done

soak: ## run the tests that can last for hours in their long forms; the last, for ever, compares with the kernel (root)
	SOAK=1 $(GO) test -count 1 -timeout 0 -v -run '^Test(Mix|Hairpin|Cycles|SingleQueue|Storm)$$' ./dataplane/netmap
	SOAK=1 $(GO) test -tags integration -count 1 -timeout 0 -v -run '^TestTwins$$' ./test/oracle

bench: ## measure nmfwd beside its peers in minutes (-quick); results in bench/results
	$(GO) run ./bench -quick

# What the tests ask the environment for has to reach the other machine's.
GUEST_ENV = $(if $(NMFWD_TEST_PORTS),NMFWD_TEST_PORTS="$(NMFWD_TEST_PORTS)" )$(if $(SOAK),SOAK="$(SOAK)" )$(if $(ICOUNT),ICOUNT="$(ICOUNT)" )

# RUNNER DIR 'COMMAND' boots a machine with /dev/netmap, copies DIR to /x and
# runs COMMAND there. Without it the tests run on this machine.
test-netmap: ## run the netmap tests on a kernel with /dev/netmap, through RUNNER if given (GOOS, GOARCH)
	@d=$$(mktemp -d) && trap 'rm -rf "$$d"' EXIT && \
	$(STATIC) $(GO) build -trimpath -o "$$d/nmfwd" ./cmd/nmfwd && \
	$(STATIC) $(GO) test -c -tags netmap -trimpath -o "$$d/netmap.test" ./test/netmap && \
	if [ -n "$(RUNNER)" ]; then $(RUNNER) "$$d" '$(GUEST_ENV)/x/netmap.test -test.v'; else cd "$$d" && ./netmap.test -test.v; fi

clean: ## remove what was built
	rm -rf bin
