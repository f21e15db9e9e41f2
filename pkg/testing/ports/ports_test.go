package ports

import (
	"fmt"
	"net"
	"os"
	"testing"
)

func TestFree(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := Free()
		if err != nil || seen[port] || port < first || port >= first+count {
			t.Fatalf("port %d, %v, after %d others", port, err, len(seen))
		}
		seen[port] = true
	}
	next := first + (97*os.Getpid()+int(taken.Load())+1)%count
	listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", next))
	if err != nil {
		t.Skip(err)
	}
	defer listener.Close()
	if port, err := Free(); err != nil || port == next {
		t.Errorf("port %d, on which somebody listens, %v", port, err)
	}
}
