package protect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// Units sets memory properties of systemd units at run time.
type Units interface {
	// SetMemory sets properties of a unit: memory.min, memory.low and memory.high in bytes, Max for no limit; cpuset.mems as a bit for
	// each NUMA node. It returns within seconds. The error is ErrNoSystemd or ErrNoUnit if there is nothing to set.
	SetMemory(ctx context.Context, unit string, values map[cgroup.Knob]uint64) error
}

var (
	// ErrNoSystemd means that nobody listens on systemd's socket.
	ErrNoSystemd = errors.New("no systemd to talk to")
	// ErrNoUnit means that systemd has no unit of that name.
	ErrNoUnit = errors.New("systemd has no such unit")
)

// property maps knobs to systemd properties (systemd.resource-control(5)). memory.oom.group has none: it follows from OOMPolicy, which cannot
// change while a unit runs, and systemd writes it with every other property.
var property = map[cgroup.Knob]string{
	cgroup.MemoryMin:  "MemoryMin",
	cgroup.MemoryLow:  "MemoryLow",
	cgroup.MemoryHigh: "MemoryHigh",
	cgroup.CpusetMems: "AllowedMemoryNodes", // systemd 244
}

// SystemdUnits implements Units over systemd's D-Bus socket. A value that systemd holds survives a daemon-reload and changes of other
// properties of the unit; a value that is only in the file does not. Setting a property makes systemd write all values of the unit, and a
// cpu.max of another writer is lost (kubernetes#138431). So a property is set only when its value changes.
type SystemdUnits struct {
	socket string

	mu   sync.Mutex
	conn *systemd.Conn
}

// NewUnits returns Units over systemd's private D-Bus socket, usually /run/systemd/private. It connects at first use, and again after an
// error.
func NewUnits(socket string) *SystemdUnits {
	return &SystemdUnits{socket: socket}
}

// callTimeout bounds one call: a daemon-reload of a busy node takes seconds.
const callTimeout = 10 * time.Second

// SetMemory implements Units. It waits for systemd no longer than callTimeout.
func (u *SystemdUnits) SetMemory(ctx context.Context, unit string, values map[cgroup.Knob]uint64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := u.set(ctx, unit, properties(values)); err != nil {
		return fmt.Errorf("set the memory properties of unit %s over %s: %w", unit, u.socket, err)
	}
	return nil
}

func (u *SystemdUnits) set(ctx context.Context, unit string, properties []systemd.Property) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == nil || !u.conn.Connected() {
		conn, err := u.dial(ctx)
		if err != nil {
			return err
		}
		u.conn = conn
	}
	err := u.conn.SetUnitPropertiesContext(ctx, unit, true, properties...)
	var answer dbus.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &answer):
		// No answer: the connection is broken.
		u.conn.Close()
		u.conn = nil
	case answer.Name == "org.freedesktop.systemd1.NoSuchUnit":
		return ErrNoUnit
	}
	return err
}

// dial connects. The deadline of ctx bounds only the connecting, including a call that the library makes without a deadline; the connection
// outlives ctx.
func (u *SystemdUnits) dial(ctx context.Context) (*systemd.Conn, error) {
	var stops []func() bool
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	conn, err := systemd.NewConnection(func() (*dbus.Conn, error) {
		socket, err := new(net.Dialer).DialContext(ctx, "unix", u.socket)
		if err != nil {
			return nil, err
		}
		stops = append(stops, context.AfterFunc(ctx, func() { socket.Close() }))
		return handshake(socket)
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrNoSystemd
	}
	return conn, err
}

// handshake authenticates. The private socket is no bus and takes no Hello.
func handshake(socket net.Conn) (*dbus.Conn, error) {
	conn, err := dbus.NewConn(socket)
	if err != nil {
		socket.Close()
		return nil, err
	}
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// setMemory sets the properties of a cgroup's unit. systemd then also writes memory.oom.group, 0 for a container (src/core/cgroup.c,
// cgroup_context_apply): the kubelet's 1 is written back. overwritten is set until that is done, for the next try.
func setMemory(ctx context.Context, u Units, t *cgroupfs.Tree, dir, unit string, values map[cgroup.Knob]uint64, overwritten *bool) error {
	const kubelets = 1
	now, err := t.Get(dir, cgroup.MemoryOOMGroup)
	*overwritten = *overwritten || err == nil && now == kubelets
	if err := u.SetMemory(ctx, unit, values); err != nil || !*overwritten {
		return err
	}
	for deadline := time.Now().Add(writesAfter); time.Now().Before(deadline); time.Sleep(writesAfter / 100) {
		if now, err := t.Get(dir, cgroup.MemoryOOMGroup); err != nil || now != kubelets {
			if err = t.Set(dir, cgroup.MemoryOOMGroup, kubelets); err != nil && !t.Ended(dir) {
				return err
			}
			break
		}
	}
	*overwritten = false
	return nil
}

// writesAfter is how long systemd may take to write the files after it has answered.
const writesAfter = 300 * time.Millisecond

func properties(values map[cgroup.Knob]uint64) []systemd.Property {
	var list []systemd.Property
	for knob, v := range values {
		var value any = v // Max is systemd's infinity too
		if knob == cgroup.CpusetMems {
			value = nodeMask(v)
		}
		list = append(list, systemd.Property{Name: property[knob], Value: dbus.MakeVariant(value)})
	}
	slices.SortFunc(list, func(a, b systemd.Property) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// nodeMask encodes NUMA nodes for systemd: a bit for each node, lowest byte first.
func nodeMask(nodes uint64) []byte {
	return binary.LittleEndian.AppendUint64(nil, nodes)[:(bits.Len64(nodes)+7)/8]
}
