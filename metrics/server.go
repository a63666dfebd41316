package metrics

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"nmfwd/clients"
)

// maxConns is how many connections are kept at once.
const maxConns = 32

// A Server answers GET /metrics. Who is slow to ask, or to read, holds nobody up.
type Server struct {
	listener net.Listener
	http     http.Server
	scrape   http.Handler
	one      sync.Mutex // for what is read of the router, one scrape at a time
}

// Listen opens the address host:port to serve c, the Go runtime and the process
// on. Requests wait until Serve.
func Listen(addr string, c *Collector) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s := &Server{listener: l, scrape: promhttp.HandlerFor(reg, promhttp.HandlerOpts{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.answer)
	s.http = http.Server{
		Handler:        mux,
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 1 << 14,
		ConnContext:    func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	return s, nil
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// A page is an answer in memory.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *page) Header() http.Header         { return p.header }
func (p *page) WriteHeader(status int)      { p.status = status }
func (p *page) Write(b []byte) (int, error) { return p.body.Write(b) }

// answer makes the whole answer before the first byte is sent.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*clients.Conn); ok {
		c.SetBusy(true)
		defer c.SetBusy(false)
	}
	p := page{header: w.Header(), status: http.StatusOK}
	s.one.Lock()
	s.scrape.ServeHTTP(&p, r)
	s.one.Unlock()
	w.Header().Set("Content-Length", strconv.Itoa(p.body.Len()))
	w.WriteHeader(p.status)
	w.Write(p.body.Bytes())
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers requests until ctx is done. Failed is told when connections cannot
// be accepted, which is tried again; it may be nil.
func (s *Server) Serve(ctx context.Context, failed func(error)) error {
	stop := context.AfterFunc(ctx, func() { s.http.Close() })
	defer stop()
	if err := s.http.Serve(clients.Listen(s.listener, maxConns, failed)); err != http.ErrServerClosed {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
