package world

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Stage is where a script is played: the model, or a real kernel's cgroup with processes that do what Program says.
type Stage interface {
	Make(cgroup string) error
	Remove(cgroup string) error
	Write(cgroup, file, text string) error
	Text(cgroup, file string) (string, error)
	Start(cgroup string, p Program, who Who, exited func(Exit)) (stop func())
	Inotify() (cgroupfs.Inotify, error)
	Wait(time.Duration)
}

// Inotify makes an inotify instance, without faults.
func (k *Kernel) Inotify() (cgroupfs.Inotify, error) { return k.Port(none{}).Inotify() }

//go:embed testdata/kernel
var scripts embed.FS

// Scripts are what Play plays, by name.
func Scripts() map[string]string {
	all := map[string]string{}
	names, err := fs.Glob(scripts, "testdata/kernel/*.txt")
	must(err)
	for _, name := range names {
		text, err := scripts.ReadFile(name)
		must(err)
		all[strings.TrimSuffix(path.Base(name), ".txt")] = string(text)
	}
	return all
}

// Wait lets time pass for the model, a second at a time.
func (k *Kernel) Wait(d time.Duration) {
	for ; d > 0; d -= time.Second {
		k.mu.Lock()
		next := k.now.Add(time.Second)
		k.mu.Unlock()
		k.Tick(next)
	}
}

// Line is a line of a script that was played.
type Line struct {
	Number int
	Text   string
	Got    string // what was read or heard, or the name of the error
	Err    error  // what was expected is not so
}

// Play plays a script of lines, so that a model and a real kernel can be compared:
//
//	mkdir a/b
//	rmdir a/b
//	write a/memory.high 64Mi     a size is written as bytes, "" is nothing; anything else as it is
//	touch a 80Mi anon            a process that gets it (anon, read, write or tmpfs) and stays; with a number more, its oom_score_adj
//	wait 10s
//	read a/memory.events high    the whole file, or a key of it
//	await a/memory.pressure full.avg10 > 5   a read each second, for a minute or until it is as expected: a slow machine stalls later
//	end a                        the processes of the cgroup
//	watch a                      as the daemon does: a cgroup for what is made, removed and written in it, a file for what the kernel counts
//	heard a/memory.high:close    what the watches said since the last time: of create, delete, close and modify, each once; after a +, at least
//
// A write and a mkdir may end in the error that is expected (EINVAL). A read may end in =, <, > or ~ (a sixteenth more or less, and 3 MiB) and
// a size. A line that begins with 6.9+ or 6.9- is for kernels from this version on, or before it. Play returns the lines that were played.
func Play(stage Stage, version, script string) (lines []Line) {
	p := player{Stage: stage, stops: map[string][]func(){}, watches: map[int32]string{}}
	for i, line := range strings.Split(script, "\n") {
		line, _, _ := strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if major, minor, sign := since(words[0]); sign != "" {
			v, _ := versionOf(version)
			if later := v[0] > major || v[0] == major && v[1] >= minor; later != (sign == "+") {
				continue
			}
			words = words[1:]
		}
		got, err := p.play(words)
		lines = append(lines, Line{i + 1, strings.Join(words, " "), got, err})
	}
	if p.in != nil {
		_ = p.in.Close()
	}
	return lines
}

func since(word string) (major, minor int, sign string) {
	_, _ = fmt.Sscanf(word, "%d.%d%1s", &major, &minor, &sign)
	return major, minor, sign
}

type player struct {
	Stage
	stops   map[string][]func()
	in      cgroupfs.Inotify
	watches map[int32]string
	heard   int
}

func (p *player) play(words []string) (string, error) {
	rest := words[1:]
	words = append(words, "", "", "", "")
	at := words[1]
	file := at[strings.LastIndex(at, "/")+1:]
	dir := strings.TrimSuffix(strings.TrimSuffix(at, file), "/")
	switch words[0] {
	case "mkdir":
		return expected(p.Make(at), words[2])
	case "rmdir":
		return expected(p.Remove(at), words[2])
	case "write":
		text, wanted := size(words[2]), words[3]
		if strings.Contains(words[3], "=") {
			text, wanted = text+" "+words[3], words[4]
		}
		return expected(p.Write(dir, file, strings.Trim(text, `"`)), wanted)
	case "touch":
		program, err := programOf(words[2], words[3])
		adjust, _ := strconv.Atoi(words[4])
		p.stops[at] = append(p.stops[at], p.Start(at, program, Who{OOMScoreAdj: adjust}, nil))
		return "", err
	case "end":
		for _, stop := range p.stops[at] {
			stop()
		}
		return "", nil
	case "wait":
		d, err := time.ParseDuration(at)
		p.Wait(d)
		return "", err
	case "read":
		text, err := p.Text(dir, file)
		words = words[2:]
		if words[0] != "" && !strings.Contains("=<>~", words[0]) {
			text = keyed(text, words[0])
			words = words[1:]
		}
		if err != nil {
			return expected(err, words[1])
		}
		return text, compare(text, words[0], strings.Trim(size(words[1]), `"`))
	case "await":
		text, err := "", errors.New("never read")
		for second := 0; err != nil && second < 60; second++ {
			p.Wait(time.Second)
			text, err = p.play(append([]string{"read"}, rest...))
		}
		return text, err
	case "watch":
		return "", p.watch(at, dir, file)
	case "heard":
		heard, err := p.hear()
		text := strings.Join(heard, " ")
		if more := len(rest) > 0 && rest[0] == "+"; more && err == nil {
			heard = slices.DeleteFunc(heard, func(event string) bool { return !slices.Contains(rest, event) })
			rest = rest[1:]
		}
		if slices.Sort(rest); err == nil && !slices.Equal(heard, rest) {
			err = fmt.Errorf("it is %q", text)
		}
		return text, err
	}
	return "", errors.New("no such command")
}

// watch watches a cgroup or a file as cgroupfs.Watcher does.
func (p *player) watch(at, dir, file string) (err error) {
	if p.in == nil {
		if p.in, err = p.Inotify(); err == nil {
			_, err = p.in.Add("", "", unix.IN_CREATE) // for heard
		}
	}
	mask := uint32(unix.IN_MODIFY)
	if !strings.Contains(file, ".") {
		dir, file, mask = at, "", unix.IN_CLOSE_WRITE|unix.IN_CREATE|unix.IN_DELETE|unix.IN_ONLYDIR
	}
	if err == nil {
		var wd int
		wd, err = p.in.Add(dir, file, mask)
		p.watches[int32(wd)] = at
	}
	return err
}

// hear reads events up to a cgroup's that it makes.
func (p *player) hear() ([]string, error) {
	p.heard++
	end := fmt.Sprint("heard", p.heard)
	if err := p.Make(end); err != nil {
		return nil, err
	}
	heard := map[string]bool{}
	for buffer := make([]byte, 64<<10); ; {
		n, err := p.in.Read(buffer)
		if err != nil {
			return nil, err
		}
		for data := buffer[:n]; len(data) > 0; {
			length := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(data[12:]))
			name := strings.TrimRight(string(data[unix.SizeofInotifyEvent:length]), "\x00")
			if name == end {
				return slices.Sorted(maps.Keys(heard)), nil
			}
			if at := p.watches[int32(binary.NativeEndian.Uint32(data))]; at != "" {
				heard[strings.TrimSuffix(at+"/"+name, "/")+":"+eventName(binary.NativeEndian.Uint32(data[4:]))] = true
			}
			data = data[length:]
		}
	}
}

func eventName(mask uint32) string {
	for bit, name := range map[uint32]string{unix.IN_CREATE: "create", unix.IN_DELETE: "delete", unix.IN_CLOSE_WRITE: "close", unix.IN_MODIFY: "modify"} {
		if mask&bit != 0 {
			return name
		}
	}
	return fmt.Sprintf("%#x", mask)
}

// size is bytes as digits for a size with a suffix, and any other text as it is.
func size(text string) string {
	if strings.HasSuffix(text, "i") {
		if v, err := quantity.Parse(text); err == nil {
			return strconv.FormatUint(v, 10)
		}
	}
	return text
}

func programOf(amount, kind string) (p Program, err error) {
	bytes, err := quantity.Parse(amount)
	switch kind {
	case "anon":
		p.Heap = bytes
	case "read", "write":
		p.Cache, p.Dirty = bytes, kind == "write"
	case "tmpfs":
		p.Tmpfs = bytes
	default:
		err = fmt.Errorf("%q is not one of anon, read, write, tmpfs", kind)
	}
	return p, err
}

func expected(err error, name string) (string, error) {
	var number unix.Errno
	_ = errors.As(err, &number)
	if got := unix.ErrnoName(number); got != name {
		return got, fmt.Errorf("the error is %q, want %q", got, name)
	}
	return name, nil
}

// keyed is a value of a file with a name and a value on each line, or of the key of a pressure line (full.avg10).
func keyed(text, key string) string {
	name, inner, _ := strings.Cut(key, ".")
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != name {
			continue
		}
		if inner == "" {
			return strings.Join(fields[1:], " ")
		}
		for _, field := range fields[1:] {
			if value, ok := strings.CutPrefix(field, inner+"="); ok {
				return value
			}
		}
	}
	return ""
}

func compare(text, how, want string) error {
	got, err := strconv.ParseFloat(text, 64)
	number, err2 := strconv.ParseFloat(want, 64)
	numbers := errors.Join(err, err2) == nil
	ok := false
	switch {
	case how == "":
		ok = true
	case how == "=":
		ok = text == want
	case numbers && how == "<":
		ok = got < number
	case numbers && how == ">":
		ok = got > number
	case numbers && how == "~":
		ok = max(got-number, number-got) <= number/16+3<<20
	}
	if !ok {
		return fmt.Errorf("it is %q", text)
	}
	return nil
}
