package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// The bounds of a listener: the memory and the time that its clients may take.
const (
	// maxConnections leaves room for the kubelet's probes, for those that scrape metrics, and for a browser or two.
	maxConnections = 32
	// sendBuffer, in bytes, bounds what the kernel holds of an answer that a client does not read; by itself it may grow to
	// 4 MiB (tcp_wmem).
	sendBuffer = 64 << 10

	headerTimeout = 5 * time.Second
	// requestTimeout bounds reading a request and, separately, answering it.
	requestTimeout = 10 * time.Second
	idleTimeout    = time.Minute
	maxHeader      = 16 << 10
)

// ListenTCP listens on an address such as "127.0.0.1:8891" or ":8891".
func ListenTCP(address string) (net.Listener, error) {
	return net.Listen("tcp", address)
}

// ListenUnix listens on a socket that only its owner may use. A socket that an earlier run left behind is replaced.
func ListenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("serve status: %s exists and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("serve status: %w", err)
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve status: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("serve status: %w", err)
	}
	return listener, nil
}

// Serve answers on a listener until ctx ends.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	var clients connections
	server := &http.Server{
		Handler: handler, ConnState: clients.changed, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// connections bounds how many connections are open at once: a new one ends another. If it had to wait for one of the others to end
// instead, clients that never read would keep the kubelet's probes out.
type connections struct {
	mu   sync.Mutex
	open []connection // oldest first
}

type connection struct {
	net.Conn
	client string // the address that it comes from, without the port
	idle   bool   // it has had its answers
}

// changed is the server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := func(other connection) bool { return other.Conn == conn }
	switch state {
	case http.StateNew:
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer) // the connection has just ended
		}
		c.open = append(c.open, connection{Conn: conn, client: clientOf(conn)})
		if len(c.open) > maxConnections {
			i := c.dispensable()
			abort(c.open[i].Conn)
			c.open = slices.Delete(c.open, i, i+1)
		}
	case http.StateActive, http.StateIdle:
		if i := slices.IndexFunc(c.open, same); i >= 0 {
			c.open[i].idle = state == http.StateIdle
		}
	case http.StateClosed, http.StateHijacked:
		c.open = slices.DeleteFunc(c.open, same)
	}
}

// dispensable is the connection to end for the newest: one of the client that has the most, so that a client with many ends its own;
// of these one without a request before one that is being answered, and the oldest.
func (c *connections) dispensable() (chosen int) {
	count := map[string]int{}
	for _, conn := range c.open {
		count[conn.client]++
	}
	for i, conn := range c.open[:maxConnections] {
		best := c.open[chosen]
		switch has, most := count[conn.client], count[best.client]; {
		case has > most, has == most && conn.idle && !best.idle:
			chosen = i
		}
	}
	return chosen
}

// clientOf is the address that a connection comes from, without the port; all of a unix socket's have the same.
func clientOf(conn net.Conn) string {
	address := conn.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// abort closes a connection without the kernel keeping what its client has not read.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the connection has just ended
	}
	conn.Close()
}
