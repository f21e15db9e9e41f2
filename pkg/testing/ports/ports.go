// Package ports finds TCP ports for servers that a test starts as processes, which are told theirs before they listen.
package ports

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
)

// The ports are below those that Linux gives to clients and to listeners that name none (net.ipv4.ip_local_port_range, from 32768): a port
// from there may be somebody's before the server listens on it. And they are above those of Kubernetes, which a test's kubelet has.
const first, count = 12000, 20000

var taken atomic.Int64

// Free returns a port of the loopback on which nobody listens, in a process none twice. Processes begin at different ones.
func Free() (int, error) {
	for range count {
		port := first + (97*os.Getpid()+int(taken.Add(1)))%count
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("somebody listens on each port from %d to %d of the loopback", first, first+count-1)
}
