package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Guest is the outcome of one boot.
type Guest struct {
	Dir string // console.log, tests.log, logs.tar, qemu.log
	// Exit is the status that the guest announced; -1 when it died before.
	Exit int
	// Why says how a guest without a status ended.
	Why string
	// Packed is how long its root took to pack, Time how long it ran, Booted the part of that before its tests began, and CPU the part in
	// which QEMU computed.
	Packed, Time, Booted, CPU time.Duration
}

var testsBegan = regexp.MustCompile(`E2E \[ *([0-9.]+) *\] running the tests`)

// booted is how long a guest ran before its tests began, by its own clock; 0 when they never did.
func booted(console string) time.Duration {
	found := testsBegan.FindStringSubmatch(console)
	if found == nil {
		return 0
	}
	seconds, _ := strconv.ParseFloat(found[1], 64)
	return time.Duration(seconds * float64(time.Second))
}

// Died reports that the guest ended without announcing a status.
func (g Guest) Died() bool { return g.Exit < 0 }

// Tests is what the test binary printed so far.
func (g Guest) Tests() string { return read(filepath.Join(g.Dir, "tests.log")) }

// Console is what the kernel and init printed.
func (g Guest) Console() string { return read(filepath.Join(g.Dir, "console.log")) }

func read(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(text), "\r", "")
}

// outerMargin is how much longer QEMU may live than the guest's own watchdog:
// boot and shipping of logs on a slow machine.
const outerMargin = 150 * time.Second

// Boot boots a guest in dir, waits for its end and says what became of it.
func (p *Parts) Boot(ctx context.Context, v Variant, plan setup.Plan, dir string) (Guest, error) {
	g, asked := Guest{Dir: dir, Exit: -1}, time.Now()
	if err := os.RemoveAll(dir); err != nil {
		return g, fmt.Errorf("boot %s: %w", v.Name, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return g, fmt.Errorf("boot %s: %w", v.Name, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var member *controlplane.Node
	if v.Cluster {
		cluster, err := controlplane.New([]string{p.kubernetes, p.etcd}, filepath.Join(dir, "controlplane"))
		if err != nil {
			return g, err
		}
		if member, err = cluster.Join(setup.NodeName); err != nil {
			return g, err
		}
		plan.KubeletPort, plan.APIServer = cluster.KubeletPort(), cluster.SeenByGuests()
		var starting sync.WaitGroup
		starting.Go(func() { // beside the packing of the root and the boot; the guest waits for it
			if err := cluster.Start(ctx); err != nil {
				cancel(err)
			}
		})
		defer func() {
			starting.Wait()
			cluster.Stop()
		}()
	}
	tree, err := p.root(v, plan, member)
	if err != nil {
		return g, err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := tree.WriteTo(initrd); err != nil {
		return g, err
	}
	defer os.Remove(initrd)
	if v.SlowDisks {
		for _, d := range slowDisks {
			if err := d.create(dir); err != nil {
				return g, err
			}
			defer os.Remove(d.file(dir))
		}
	}
	kernel, err := p.vmlinuz(v.Kernel)
	if err != nil {
		return g, err
	}
	ctx, stop := context.WithTimeout(ctx, plan.Watchdog+outerMargin)
	defer stop()
	cmd := exec.CommandContext(ctx, p.qemu, arguments(v, plan, dir, kernel, initrd)...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(cmd.Environ(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1") // the emulator's tables, which are read in no order, in huge pages
	began := time.Now()
	out, err := cmd.CombinedOutput()
	g.Packed, g.Time = began.Sub(asked), time.Since(began)
	if cmd.ProcessState != nil {
		g.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	g.Booted = booted(g.Console())
	_ = os.WriteFile(filepath.Join(dir, "qemu.log"), out, 0o644)
	if m := regexp.MustCompile(`E2E-EXIT (\d+)`).FindStringSubmatch(g.Console()); m != nil {
		g.Exit, _ = strconv.Atoi(m[1])
		return g, nil
	}
	switch cause := context.Cause(ctx); {
	case cause != nil && !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, context.Canceled):
		g.Why = cause.Error()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		g.Why = fmt.Sprintf("no end after %v", plan.Watchdog+outerMargin)
	case err != nil:
		g.Why = fmt.Sprintf("QEMU: %v: %s", err, tail(string(out), 3))
	default:
		g.Why = "powered off without a status (kernel panic or reset)"
	}
	return g, nil
}

// kvmWorks reports whether this machine has hardware virtualization that this user may use. A container can have the device of a host
// whose processor does not let it start guests.
func kvmWorks() bool {
	processor, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !regexp.MustCompile(`(?m)^flags\s*:.*\b(vmx|svm)\b`).Match(processor) {
		return false
	}
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	return device.Close() == nil
}

// accelerator returns QEMU's -accel and -cpu: what ACCEL says, KVM where it works, or software emulation with one thread for all CPUs of the
// guest (two guests with a thread for each CPU spend most of two cores waiting for one another's locks).
func accelerator() (accel, cpu string) {
	const emulated = "Nehalem,-cx16" // with cx16, QEMU 7.2 and kernel 6.12 double-fault early
	switch a := os.Getenv("ACCEL"); {
	case strings.HasPrefix(a, "tcg,"): // with options of its own
		return a, emulated
	case a != "" && a != "tcg":
		return a, "host"
	case a == "" && kvmWorks():
		return "kvm", "host"
	}
	return "tcg,thread=single,tb-size=512", emulated
}

// arguments are QEMU's: one memory backend per NUMA node, two channels back and, in a cluster, a user network over which the guest
// reaches the control plane and the API server the kubelet.
func arguments(v Variant, plan setup.Plan, dir, kernel, initrd string) []string {
	accel, cpu := accelerator()
	var nodes, distances []string
	total, cpus := 0, 0
	for _, n := range v.Nodes {
		nodes = append(nodes, "-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", n.ID, n.MiB))
		node := fmt.Sprintf("node,nodeid=%d,memdev=m%d", n.ID, n.ID)
		for range n.CPUs {
			node += fmt.Sprintf(",cpus=%d", cpus)
			cpus++
		}
		nodes = append(nodes, "-numa", node)
		for to, d := range n.Distances {
			if to != n.ID {
				distances = append(distances, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", n.ID, to, d))
			}
		}
		total += n.MiB
	}
	appended := "console=ttyS0 panic=-1 mitigations=off nokaslr nowatchdog tsc=reliable random.trust_cpu=on quiet swapaccount=1 init_on_alloc=0"
	if cpu != "host" { // an emulated CPU clears pages faster without REP STOSQ: each eight bytes of it are a block of their own
		appended += " clearcpuid=rep_good"
	}
	// The kernel unpacks the root on the CPU that its unbound work queues happen to use, and the pages stay on that CPU's node.
	// Linux 6.1 cannot be told which one.
	appended += fmt.Sprintf(" workqueue.unbound_cpus=%d", v.RootCPU)
	if v.Driver == setup.Systemd {
		appended += " systemd.unit=e2e.target systemd.show_status=false"
	}
	smp := strconv.Itoa(cpus)
	if v.Sockets {
		smp += fmt.Sprintf(",sockets=%d,cores=%d", len(v.Nodes), cpus/len(v.Nodes))
	}
	args := []string{
		"-M", "q35", "-accel", accel, "-cpu", cpu, "-smp", smp, "-m", fmt.Sprintf("%dM", total),
		"-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-no-reboot",
		"-serial", "file:" + filepath.Join(dir, "console.log"),
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=tests,path=" + filepath.Join(dir, "tests.log"), "-device", "virtserialport,chardev=tests,name=" + setup.TestsPort,
		"-chardev", "file,id=logs,path=" + filepath.Join(dir, "logs.tar"), "-device", "virtserialport,chardev=logs,name=" + setup.LogsPort,
		"-kernel", kernel, "-initrd", initrd, "-append", appended,
	}
	if v.Cluster {
		args = append(args, "-netdev", fmt.Sprintf("user,id=net,hostfwd=tcp:127.0.0.1:%d-:%d", plan.KubeletPort, plan.KubeletPort),
			"-device", "virtio-net-pci,netdev=net,romfile=")
	} else if plan.Command != nil { // a kubelet needs an address that is not loopback's
		args = append(args, "-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	if v.SlowDisks {
		args = append(args, slowRoot...)
		for i, d := range slowDisks {
			args = append(args, d.arguments(dir, i)...)
		}
	}
	if v.Devices { // after the cluster's interface, which must be the kernel's first
		args = append(args, devices...)
	}
	return slices.Concat(args, nodes, distances)
}

// slowDisk is a disk of 1 GiB that QEMU lets write so many MB in a second.
type slowDisk int

// slowDisks have the serial numbers slow20 and slow50 in the guest.
var slowDisks = []slowDisk{20, 50}

// slowRoot is a PCI root of its own. The kernel finds the roots in the reverse order of their arguments, so that the disk of devices is the first.
var slowRoot = []string{"-device", "pxb-pcie,id=slow,bus=pcie.0,bus_nr=192"}

func (d slowDisk) file(dir string) string { return filepath.Join(dir, fmt.Sprintf("slow%d.img", d)) }

func (d slowDisk) create(dir string) error {
	if err := os.WriteFile(d.file(dir), nil, 0o600); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	if err := os.Truncate(d.file(dir), 1<<30); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	return nil
}

func (d slowDisk) arguments(dir string, slot int) []string {
	return []string{
		"-device", fmt.Sprintf("pcie-root-port,id=slow%dport,bus=slow,chassis=%d,slot=%d,addr=%d", d, 11+slot, 11+slot, 1+slot),
		"-drive", fmt.Sprintf("if=none,id=slow%d,file=%s,format=raw,cache=unsafe,throttling.bps-write=%d", d, d.file(dir), int(d)<<20),
		"-device", fmt.Sprintf("virtio-blk-pci,bus=slow%dport,drive=slow%d,serial=slow%d", d, d, d),
	}
}

// devices are a PCI root that the firmware's tables put on NUMA node 1, and behind it a disk that holds nothing and a network
// interface that leads nowhere.
var devices = []string{
	"-device", "pxb-pcie,id=root1,bus=pcie.0,bus_nr=128,numa_node=1",
	"-device", "pcie-root-port,id=port1,bus=root1,chassis=1,slot=1,addr=1", "-device", "pcie-root-port,id=port2,bus=root1,chassis=1,slot=2,addr=2",
	"-blockdev", "driver=null-co,node-name=disk,size=1048576,read-zeroes=on", "-device", "virtio-blk-pci,bus=port1,drive=disk",
	"-device", "virtio-net-pci,bus=port2,romfile=",
}
