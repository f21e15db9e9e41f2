package world

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Stage is where a script is played: the model, or a real kernel's cgroup with processes that do what Program says.
type Stage interface {
	Make(cgroup string) error
	Remove(cgroup string) error
	Write(cgroup, file, text string) error
	Text(cgroup, file string) (string, error)
	Start(cgroup string, p Program, who Who, exited func(Exit)) (stop func())
	Wait(time.Duration)
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

// Play plays a script of lines, so that a model and a real kernel can be compared:
//
//	mkdir a/b
//	rmdir a/b
//	write a/memory.high 64Mi     a size is written as bytes; anything else as it is
//	touch a 80Mi anon            a process that gets it (anon, read, write or tmpfs) and stays; with a number more, its oom_score_adj
//	wait 10s
//	read a/memory.events high    the whole file, or a key of it
//	end a                        the processes of the cgroup
//
// A write and a mkdir may end in the error that is expected (EINVAL). A read may end in =, <, > or ~ (a sixteenth more or less, and 1 MiB) and
// a size. Play returns what was read, a line each, and the lines that were not fulfilled.
func Play(stage Stage, script string) (read []string, err error) {
	stops := map[string][]func(){}
	for i, line := range strings.Split(script, "\n") {
		line, _, _ := strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		text, wrong := play(stage, words, stops)
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("line %d: %s: %w", i+1, strings.TrimSpace(line), wrong))
		}
		if words[0] == "read" {
			read = append(read, strings.Join(words[1:], " ")+": "+text)
		}
	}
	return read, err
}

func play(stage Stage, words []string, stops map[string][]func()) (string, error) {
	words = append(words, "", "", "", "")
	at := words[1]
	file := at[strings.LastIndex(at, "/")+1:]
	dir := strings.TrimSuffix(strings.TrimSuffix(at, file), "/")
	switch words[0] {
	case "mkdir":
		return "", expected(stage.Make(at), words[2])
	case "rmdir":
		return "", expected(stage.Remove(at), words[2])
	case "write":
		text, wanted := words[2], words[3]
		if strings.HasPrefix(words[3], "swappiness=") {
			text, wanted = size(words[2])+" "+words[3], words[4]
		}
		return "", expected(stage.Write(dir, file, size(text)), wanted)
	case "touch":
		program, err := programOf(words[2], words[3])
		adjust, _ := strconv.Atoi(words[4])
		stops[at] = append(stops[at], stage.Start(at, program, Who{OOMScoreAdj: adjust}, nil))
		return "", err
	case "end":
		for _, stop := range stops[at] {
			stop()
		}
		return "", nil
	case "wait":
		d, err := time.ParseDuration(at)
		stage.Wait(d)
		return "", err
	case "read":
		text, err := stage.Text(dir, file)
		words = words[2:]
		if words[0] != "" && !strings.Contains("=<>~", words[0]) {
			text = keyed(text, words[0])
			words = words[1:]
		}
		if err != nil {
			return err.Error(), expected(err, words[1])
		}
		return text, compare(text, words[0], size(words[1]))
	}
	return "", errors.New("no such command")
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

func expected(err error, name string) error {
	var number unix.Errno
	_ = errors.As(err, &number)
	if got := unix.ErrnoName(number); got != name {
		return fmt.Errorf("the error is %q, want %q", got, name)
	}
	return nil
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
		ok = max(got-number, number-got) <= number/16+1<<20
	}
	if !ok {
		return fmt.Errorf("it is %q", text)
	}
	return nil
}
