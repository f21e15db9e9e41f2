package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// shipping is how long before the watchdog's end the tests are asked to stop.
const shipping = 20 * time.Second

// runGuest prepares the node, starts the runtime, runs the tests, ships logs.
func runGuest() error {
	// Both are the runtime's, the kubelet's and the tests', not the plugin's under test: they take a third less of an emulated CPU with GOGC, and a
	// seventh less with one thread at a time, because all CPUs of a guest are one thread of the emulator.
	for key, value := range map[string]string{"PATH": "/usr/bin:/usr/sbin", "HOME": "/root", "GOTRACEBACK": "all", "GOGC": "400", "GOMAXPROCS": "1"} {
		_ = os.Setenv(key, value)
	}
	plan, err := setup.Read()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(setup.Logs, 0o755); err != nil {
		return fmt.Errorf("make the log folder: %w", err)
	}
	var once sync.Once
	end := func(status int) {
		once.Do(func() {
			ship()
			powerOff(status)
		})
		select {}
	}
	time.AfterFunc(plan.Watchdog, func() {
		say("watchdog: the guest used up its %v", plan.Watchdog)
		end(4)
	})
	say("preparing %s", plan.Variant)
	if err := prepare(plan); err != nil {
		say("preparing failed: %v", err)
		end(3)
	}
	r := newRuntime(plan)
	go r.supervise()
	if err := r.importImages(); err != nil {
		say("no image: %v", err)
		end(3)
	}
	say("running the tests")
	end(runTests(plan))
	return nil
}

// prepare makes a node out of a bare machine.
func prepare(plan setup.Plan) error {
	_ = syscall.Sethostname([]byte("e2e"))
	if err := loadModules(); err != nil {
		return err
	}
	for _, m := range []struct{ kind, target, options string }{
		{"tmpfs", "/var/lib", "mode=755"}, {"devpts", "/dev/pts", ""}, {"tmpfs", "/dev/shm", ""}, {"hugetlbfs", "/dev/hugepages", ""},
	} {
		if err := mount(m.kind, m.target, m.options); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0"} { // crun reads updates from there
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	for name, text := range map[string]string{"/etc/resolv.conf": "", "/etc/hosts": "127.0.0.1 localhost e2e\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	for _, n := range plan.Nodes {
		file := fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", n.ID)
		if n.Hugepages > 0 {
			if err := os.WriteFile(file, []byte(fmt.Sprint(n.Hugepages)), 0); err != nil {
				return fmt.Errorf("reserve huge pages: %w", err)
			}
		}
	}
	if plan.Driver == setup.Cgroupfs {
		if err := ownCgroup(); err != nil {
			return err
		}
		// As systemd gives the others: with the kernel's 4096 containerd runs 189 containers beside 500 sandboxes.
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 65536, Max: 65536}); err != nil {
			return fmt.Errorf("raise the limit of open files: %w", err)
		}
	}
	if err := loopback(); err != nil {
		return err
	}
	if plan.APIServer == "" && plan.Command == nil {
		return nil
	}
	if err := network(); err != nil || plan.APIServer == "" {
		return err
	}
	return serveAPI(plan.APIServer)
}

// network gives the guest its address in QEMU's user network, where the host is 10.0.2.2.
func network() error {
	for _, command := range []string{"link set eth0 up", "addr add 10.0.2.15/24 dev eth0", "route add default via 10.0.2.2"} {
		if out, err := exec.Command("/bin/busybox", append([]string{"ip"}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, out)
		}
	}
	return nil
}

// serveAPI forwards the API server's service address to it, as kube-proxy would.
func serveAPI(server string) error {
	if out, err := exec.Command("/bin/busybox", "ip", "addr", "add", setup.ServiceAddress+"/32", "dev", "lo").CombinedOutput(); err != nil {
		return fmt.Errorf("add the API server's service address: %w: %s", err, out)
	}
	listener, err := net.Listen("tcp", setup.ServiceAddress+":443")
	if err != nil {
		return fmt.Errorf("serve the API server's service address: %w", err)
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go forward(client, server)
		}
	}()
	return nil
}

func forward(client net.Conn, server string) {
	defer client.Close()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, upstream)
}

// ownCgroup leaves the root cgroup's controllers open for kubepods and puts
// this process, and so the runtime, where a service would be.
func ownCgroup() error {
	const root = "/sys/fs/cgroup"
	controllers, err := os.ReadFile(root + "/cgroup.controllers")
	if err != nil {
		return fmt.Errorf("read controllers: %w", err)
	}
	for _, name := range strings.Fields(string(controllers)) {
		if err := os.WriteFile(root+"/cgroup.subtree_control", []byte("+"+name), 0); err != nil {
			say("controller %s stays off: %v", name, err)
		}
	}
	if err := os.MkdirAll(root+"/system", 0o755); err != nil {
		return fmt.Errorf("make the system cgroup: %w", err)
	}
	return os.WriteFile(root+"/system/cgroup.procs", []byte("0"), 0)
}

func loadModules() error {
	files, _ := filepath.Glob("/e2e/modules/*.ko")
	for _, file := range files {
		in, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("load a kernel module: %w", err)
		}
		err = unix.FinitModule(int(in.Fd()), "", 0)
		in.Close()
		if err != nil && err != unix.EEXIST {
			say("module %s not loaded: %v", filepath.Base(file), err)
		}
	}
	return nil
}

// loopback brings the lo interface up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// port opens the channel to the host that has this name.
func port(name string) (*os.File, error) {
	dirs, _ := filepath.Glob("/sys/class/virtio-ports/*")
	for _, dir := range dirs {
		if text, err := os.ReadFile(dir + "/name"); err == nil && strings.TrimSpace(string(text)) == name {
			return os.OpenFile("/dev/"+filepath.Base(dir), os.O_WRONLY, 0)
		}
	}
	return nil, fmt.Errorf("no channel %q to the host", name)
}

// runTests runs the test binary; near the watchdog's end it is made to print
// its stacks and stop.
func runTests(plan setup.Plan) int {
	out, err := port(setup.TestsPort)
	if err != nil {
		say("%v", err)
		return 3
	}
	defer out.Close()
	cmd := exec.Command(setup.Cases, "-test.v", "-test.timeout=0", "-test.run="+plan.Run)
	if plan.Command != nil {
		cmd = exec.Command(plan.Command[0], plan.Command[1:]...)
	}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		say("the tests did not start: %v", err)
		return 3
	}
	stop := time.AfterFunc(plan.Watchdog-shipping-uptime(), func() {
		say("the tests take too long: asking for their stacks")
		_ = cmd.Process.Signal(syscall.SIGQUIT)
	})
	err = cmd.Wait()
	stop.Stop()
	if err != nil {
		say("tests: %v", err)
		return 1
	}
	return 0
}

func uptime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// ship sends the log folder and the kernel's messages to the host.
func ship() {
	if text, err := exec.Command("dmesg").Output(); err == nil {
		_ = os.WriteFile(setup.Logs+"/dmesg.log", text, 0o644)
	}
	out, err := port(setup.LogsPort)
	if err != nil {
		say("logs not shipped: %v", err)
		return
	}
	defer out.Close()
	w := tar.NewWriter(out)
	_ = filepath.WalkDir(setup.Logs, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		const most = 32 << 20
		if len(text) > most {
			text = text[len(text)-most:]
		}
		name, _ := filepath.Rel(setup.Logs, file)
		if w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Now()}) == nil {
			_, _ = io.Copy(w, strings.NewReader(string(text)))
		}
		return nil
	})
	_ = w.Close()
}
