// Command guest is the first program of a test VM: it makes the root a real
// mount, mounts what a node has, starts the container runtime and the test
// binary, ships the logs to the host and powers the machine off.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	goruntime "runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

func main() {
	stage := "boot" // the kernel hands over the words of its command line that it does not know
	if len(os.Args) > 1 && (os.Getpid() != 1 || os.Args[1] == "stage2") {
		stage = os.Args[1]
	}
	var err error
	switch stage {
	case "boot":
		err = moveRoot()
	case "stage2":
		err = stage2()
	case "run":
		err = runGuest()
	default:
		err = fmt.Errorf("unknown stage %q", stage)
	}
	if err != nil {
		say("failed in %s: %v", stage, err)
		powerOff(3)
	}
}

// say writes a line to the console, whatever standard output is.
func say(format string, args ...any) {
	uptime, _ := os.ReadFile("/proc/uptime")
	if len(uptime) > 6 {
		uptime = uptime[:6]
	}
	line := fmt.Sprintf("\nE2E [%s] %s\n", uptime, fmt.Sprintf(format, args...))
	if console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0); err == nil {
		defer console.Close()
		_, _ = console.WriteString(line)
		return
	}
	fmt.Print(line)
}

// powerOff announces the exit status and ends the machine.
func powerOff(status int) {
	say("E2E-EXIT %d", status)
	syscall.Sync()
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART)
	select {}
}

// moveRoot turns the initramfs into a mount that pivot_root accepts.
func moveRoot() error {
	if err := syscall.Mount("/", "/newroot", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind the root: %w", err)
	}
	if err := os.Chdir("/newroot"); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	return syscall.Exec("/init", []string{"/init", "stage2"}, environment())
}

func environment() []string {
	return []string{"PATH=/usr/bin:/usr/sbin", "HOME=/root", "TERM=dumb", "XDG_RUNTIME_DIR=/run", "GOTRACEBACK=all"}
}

// timerSlack is how much later than asked for a timer of any process may fire. The runtime of Go looks after a running thread every 20 µs
// at first, and a timer costs an emulated CPU more than that.
const timerSlack = time.Millisecond

// stage2 hands over to systemd, or mounts what is needed and becomes the
// parent of all orphans itself.
func stage2() error {
	var plan setup.Plan
	text, err := os.ReadFile(setup.PlanPath)
	if err == nil {
		err = json.Unmarshal(text, &plan)
	}
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	goruntime.LockOSThread() // whose slack all others inherit
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack: %w", err)
	}
	if plan.Driver == setup.Systemd {
		return syscall.Exec("/lib/systemd/systemd", []string{"/lib/systemd/systemd"}, environment())
	}
	for _, m := range []struct{ kind, target, options string }{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""}, {"tmpfs", "/run", "mode=755"}, {"tmpfs", "/tmp", ""},
		{"cgroup2", "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot"},
	} {
		if err := mount(m.kind, m.target, m.options); err != nil {
			return err
		}
	}
	child, err := os.StartProcess("/init", []string{"/init", "run"}, &os.ProcAttr{
		Env: environment(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start the tests: %w", err)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == nil && pid == child.Pid {
			return fmt.Errorf("the run ended with %v without powering off", status)
		}
	}
}

func mount(kind, target, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if err := syscall.Mount(kind, target, kind, 0, options); err != nil && err != syscall.EBUSY {
		return fmt.Errorf("mount %s on %s: %w", kind, target, err)
	}
	return nil
}
