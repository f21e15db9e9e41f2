package world

import (
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socket is one end of a connection between two processes. What is written waits in the kernel until the other end reads it, as in a
// unix(7) socket: no writer waits for a reader that is stopped, which on a net.Pipe it would, with the multiplexer's lock in its hand.
type socket struct{ in, out *stream }

func newSockets() (a, b *socket) {
	there, back := newStream(), newStream()
	return &socket{in: back, out: there}, &socket{in: there, out: back}
}

func (s *socket) Read(b []byte) (int, error)  { return s.in.read(b) }
func (s *socket) Write(b []byte) (int, error) { return s.out.write(b) }

// Close ends both directions; the other end still reads what was written before.
func (s *socket) Close() error {
	s.in.change(func(in *stream) { in.deaf = true })
	s.out.change(func(out *stream) { out.ended = true })
	return nil
}

func (s *socket) closed() (closed bool) {
	s.in.change(func(in *stream) { closed = in.deaf })
	return closed
}

// freeze stops the process at this end: it reads nothing, and what it would not have written is not there.
func (s *socket) freeze(frozen bool) {
	s.in.change(func(in *stream) { in.held = frozen })
	s.out.change(func(out *stream) { out.held = frozen })
}

// kill ends the process at this end.
func (s *socket) kill() {
	s.out.change(func(out *stream) {
		if out.held { // written by a stopped process, which does not write
			out.data = nil
		}
	})
	s.freeze(false)
	s.Close()
}

func (s *socket) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (s *socket) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (s *socket) SetDeadline(time.Time) error      { return nil }
func (s *socket) SetReadDeadline(time.Time) error  { return nil }
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// stream is one direction of a connection.
type stream struct {
	mu    sync.Mutex
	data  []byte
	held  bool          // nobody reads for now
	ended bool          // by its writer
	deaf  bool          // its reader is gone
	news  chan struct{} // closed and replaced at each change
}

func newStream() *stream { return &stream{news: make(chan struct{})} }

func (s *stream) change(how func(*stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(s)
	close(s.news)
	s.news = make(chan struct{})
}

func (s *stream) write(b []byte) (n int, err error) {
	s.change(func(s *stream) {
		if s.ended || s.deaf {
			err = &net.OpError{Op: "write", Net: "unix", Err: unix.EPIPE} // as net.Conn says it: ttrpc asks for that type
			return
		}
		n = len(b)
		s.data = append(s.data, b...)
	})
	return n, err
}

func (s *stream) read(b []byte) (int, error) {
	for {
		n, news, err := s.next(b)
		if news == nil {
			return n, err
		}
		<-news
	}
}

// next reads what there is; news is what to wait for where there is nothing.
func (s *stream) next(b []byte) (n int, news <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.deaf:
		return 0, nil, net.ErrClosed
	case s.held:
		return 0, s.news, nil
	case len(s.data) > 0:
		n = copy(b, s.data)
		s.data = s.data[n:]
		return n, nil, nil
	case s.ended:
		return 0, nil, io.EOF
	}
	return 0, s.news, nil
}
