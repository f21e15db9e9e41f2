// Package systemd plays systemd's private D-Bus socket for tests: it takes properties of units, answers, and sets nothing. As
// there it speaks EXTERNAL authentication, no Hello, and is no bus. The daemon must not link it.
package systemd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

// Options make a systemd that misbehaves; the zero value does not.
type Options struct {
	Mute   bool              // takes connections and says nothing
	Dies   bool              // ends in the middle of its first answer
	Refuse map[string]string // units whose properties cannot be set, with the name of the error
}

// Socket listens as systemd.
type Socket struct {
	options  Options
	listener net.Listener
	ended    chan struct{}

	mu       sync.Mutex
	closed   bool
	conns    []net.Conn
	calls    []string
	answered int           // of calls
	held     chan struct{} // answers wait until it is closed; nil while they need not
	waiting  int           // answers that do
}

// Listen listens on a path where nobody does.
func Listen(path string, options Options) (*Socket, error) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen as systemd: %w", err)
	}
	s := &Socket{options: options, listener: listener, ended: make(chan struct{})}
	go s.accept()
	return s, nil
}

// Close ends the listener and all connections. Closing it again is harmless.
func (s *Socket) Close() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.ended)
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

// Calls are the properties that were to be set, as "UNIT runtime=BOOL [[NAME VALUE]…]", in the order of their arrival.
func (s *Socket) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Answered is how many of the calls have been answered.
func (s *Socket) Answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered
}

// Waiting is how many answers wait to be released: those to Calls, and to what a client library calls by itself.
func (s *Socket) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Hold has everything wait for its answer until release, as a systemd does that is busy with a daemon-reload.
func (s *Socket) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.held = held
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held = nil
		close(held)
	})
}

func (s *Socket) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			conn.Close()
		}
		s.conns = append(s.conns, conn)
		s.mu.Unlock()
		if !s.options.Mute {
			go s.serve(conn)
		}
	}
}

func (s *Socket) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	if !authenticate(conn, r) {
		return
	}
	for {
		call, err := dbus.DecodeMessage(r)
		if err != nil {
			return
		}
		answer := s.take(call)
		if s.options.Dies {
			var message bytes.Buffer
			_ = answer.EncodeTo(&message, binary.LittleEndian)
			header := 16 + int(binary.LittleEndian.Uint32(message.Bytes()[12:])) // its padding and the body follow
			_, _ = conn.Write(message.Bytes()[:min(header, message.Len()-1)])
			return
		}
		s.wait()
		if err := answer.EncodeTo(conn, binary.LittleEndian); err != nil {
			return
		}
		if setsProperties(call) {
			s.mu.Lock()
			s.answered++
			s.mu.Unlock()
		}
	}
}

// authenticate lets everybody in.
func authenticate(conn net.Conn, r *bufio.Reader) bool {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		switch command := strings.Trim(line, "\x00\r\n"); {
		case command == "AUTH":
			fmt.Fprint(conn, "REJECTED EXTERNAL\r\n")
		case strings.HasPrefix(command, "AUTH EXTERNAL"):
			fmt.Fprint(conn, "OK 1234567890abcdef1234567890abcdef\r\n")
		case command == "BEGIN":
			return true
		default:
			fmt.Fprint(conn, "ERROR\r\n")
		}
	}
}

// take records a call and returns its answer.
func (s *Socket) take(call *dbus.Message) *dbus.Message {
	answer := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
	}}
	fail := func(name string) *dbus.Message {
		answer.Type = dbus.TypeError
		answer.Headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
		return answer
	}
	if !setsProperties(call) {
		return fail("org.freedesktop.DBus.Error.UnknownMethod")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("%v runtime=%v %v", call.Body...))
	if name, refused := s.options.Refuse[fmt.Sprint(call.Body[0])]; refused {
		return fail(name)
	}
	return answer
}

func setsProperties(call *dbus.Message) bool {
	return call.Headers[dbus.FieldMember].Value() == "SetUnitProperties" && len(call.Body) == 3
}

// wait waits for release.
func (s *Socket) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held
	if held == nil {
		return
	}
	s.waiting++
	defer func() { s.waiting-- }()
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-held:
	case <-s.ended:
	}
}
