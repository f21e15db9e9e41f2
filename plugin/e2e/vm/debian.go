package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// keyring is where Debian keeps the keys that its package lists are signed with.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Archive is a Debian suite seen through this machine's own mirror, with
// state of its own: nothing is installed and the host's lists stay untouched.
type Archive struct {
	dir    string
	suites []string
	once   sync.Once
	err    error
}

// NewArchive returns the packages of these suites; its state is kept in dir.
func NewArchive(dir string, suites ...string) *Archive {
	return &Archive{dir: dir, suites: suites}
}

// mirror finds the address from which this machine takes Debian packages.
func mirror() (string, error) {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	files = append([]string{"/etc/apt/sources.list"}, files...)
	deb822 := regexp.MustCompile(`(?m)^URIs:\s*(\S+/debian)/?\s*$`)
	oneLine := regexp.MustCompile(`(?m)^deb\s+(?:\[[^]]*\]\s*)?(\S+/debian)/?\s`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, form := range []*regexp.Regexp{deb822, oneLine} {
			if m := form.FindSubmatch(text); m != nil {
				return string(m[1]), nil
			}
		}
	}
	return "", fmt.Errorf("no Debian mirror in /etc/apt: the VM tests take the kernel and their tools from Debian packages")
}

// update reads the package lists once.
func (a *Archive) update(ctx context.Context) error {
	a.once.Do(func() { a.err = a.prepare(ctx) })
	return a.err
}

func (a *Archive) prepare(ctx context.Context) error {
	from, err := mirror()
	if err != nil {
		return err
	}
	for _, dir := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return fmt.Errorf("prepare package lists: %w", err)
		}
	}
	var list strings.Builder
	for _, suite := range a.suites {
		fmt.Fprintf(&list, "deb [signed-by=%s] %s %s main\n", keyring, from, suite)
	}
	for name, text := range map[string]string{"sources.list": list.String(), "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("prepare package lists: %w", err)
		}
	}
	_, err = a.apt(ctx, a.dir, "apt-get", "update")
	return err
}

// apt runs an apt command against the archive's own state, several times if
// the network fails.
func (a *Archive) apt(ctx context.Context, dir, tool string, args ...string) (string, error) {
	options := []string{
		"-o", "Dir::State=" + a.dir + "/state", "-o", "Dir::State::status=" + a.dir + "/status",
		"-o", "Dir::Cache=" + a.dir + "/cache", "-o", "Dir::Etc::sourcelist=" + a.dir + "/sources.list",
		"-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root", "-o", "APT::Install-Recommends=false",
		"-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=30", "-q",
	}
	return retry(ctx, 4, func(ctx context.Context) (string, error) {
		return run(ctx, dir, nil, tool, append(options, args...)...)
	})
}

// Kernel fetches the newest cloud kernel of the archive and unpacks it into dir.
func (a *Archive) Kernel(ctx context.Context, dir string) error {
	return once(dir, func(dir string) error {
		if err := a.update(ctx); err != nil {
			return err
		}
		depends, err := a.apt(ctx, dir, "apt-cache", "depends", "linux-image-cloud-amd64")
		if err != nil {
			return err
		}
		name := regexp.MustCompile(`linux-image-\d\S*-cloud-amd64`).FindString(depends)
		if name == "" {
			return fmt.Errorf("no cloud kernel in %v: %s", a.suites, depends)
		}
		if depends, err = a.apt(ctx, dir, "apt-cache", "depends", name); err != nil {
			return err
		}
		// From Debian 14 on, the image and the modules are packages of their own.
		packages := append(regexp.MustCompile(`linux-(?:binary|modules)-\d\S*-cloud-amd64`).FindAllString(depends, -1), name)
		if _, err := a.apt(ctx, dir, "apt-get", append([]string{"download"}, packages...)...); err != nil {
			return err
		}
		return unpack(ctx, dir, dir)
	})
}

// Closure fetches packages with everything they need and unpacks them into dir.
func (a *Archive) Closure(ctx context.Context, dir string, packages ...string) error {
	return once(dir, func(dir string) error {
		if err := a.update(ctx); err != nil {
			return err
		}
		args := append([]string{"install", "-d", "-y", "-o", "Dir::Cache::archives=" + dir + "/"}, packages...)
		if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
			return fmt.Errorf("fetch %v: %w", packages, err)
		}
		if _, err := a.apt(ctx, dir, "apt-get", args...); err != nil {
			return err
		}
		return unpack(ctx, dir, dir)
	})
}

// unpack unpacks every package in from and removes it.
func unpack(ctx context.Context, from, to string) error {
	packages, _ := filepath.Glob(filepath.Join(from, "*.deb"))
	if len(packages) == 0 {
		return fmt.Errorf("nothing was downloaded to %s", from)
	}
	for _, file := range packages {
		if _, err := run(ctx, to, nil, "dpkg", "-x", file, to); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("unpack %s: %w", file, err)
		}
	}
	return nil
}

// once fills a folder of the cache, or leaves it as it is when it is complete:
// work is done in a folder beside it that is renamed at the end.
func once(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	building := fmt.Sprintf("%s.building-%d", dir, os.Getpid()) // another run may do the same
	if err := os.RemoveAll(building); err != nil {
		return fmt.Errorf("clear the cache: %w", err)
	}
	if err := os.MkdirAll(building, 0o755); err != nil {
		return fmt.Errorf("fill the cache: %w", err)
	}
	if err := fill(building); err != nil {
		return err
	}
	if err := os.Rename(building, dir); err != nil {
		if _, other := os.Stat(dir); other == nil {
			return os.RemoveAll(building)
		}
		return fmt.Errorf("fill the cache: %w", err)
	}
	return nil
}

// run runs a command and returns its output; the error holds the output's end.
func run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("run %s %s: %w\n%s", name, strings.Join(args, " "), err, tail(string(out), 30))
	}
	return string(out), nil
}

// retry calls do up to n times with growing pauses: mirrors have bad moments.
func retry(ctx context.Context, n int, do func(context.Context) (string, error)) (string, error) {
	var out string
	var err error
	for attempt := 1; ; attempt++ {
		if out, err = do(ctx); err == nil || attempt == n {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, err
		case <-time.After(time.Duration(attempt*attempt) * 2 * time.Second):
		}
	}
}

// tail returns the last n lines of a text.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
