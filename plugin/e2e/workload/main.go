// Command workload is the one program of the test image. It carries out the
// steps that it is given and says on standard output when each is done:
//
//	touch=BYTES        map anonymous memory, write every page, keep it
//	huge=BYTES         the same with 2 MiB huge pages
//	keep-touching=FILE write all that was touched again and again until the file exists
//	gap=FILE           touch a page every millisecond until the file exists, and say
//	                   the largest gap between two of them in microseconds
//	read=FILE          read a file to its end
//	write=FILE:BYTES   write a file
//	grow=BYTES         touch 1 MiB after the other, saying every sixteenth
//	crowd=BYTES        the same in 16 threads at once
//	files=DIR:COUNT    make so many empty files, which takes the kernel's memory
//	child=STEP         carry a step out in a process of its own, and say how it ended
//	free               give all that was touched back
//	wait=FILE          until the file exists
//	say=TEXT           a line
//	exit=N             end
//	term=N             end with N at SIGTERM; without it, with 0
//	sleep              for ever (also when nothing is left to do)
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var held [][]byte // what was touched stays mapped

var atTerm atomic.Int32 // the exit status at SIGTERM

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		os.Exit(int(atTerm.Load()))
	}()
	for _, step := range os.Args[1:] {
		name, value, _ := strings.Cut(step, "=")
		if err := do(name, value); err != nil {
			fmt.Printf("failed %s: %v\n", step, err)
			os.Exit(1)
		}
		fmt.Printf("done %s\n", step)
	}
	select {}
}

func do(name, value string) error {
	switch name {
	case "touch", "huge":
		flags := syscall.MAP_PRIVATE
		if name == "huge" {
			flags |= syscall.MAP_HUGETLB
		}
		memory, err := mapped(value, flags)
		if err != nil {
			return err
		}
		touch(memory)
		held = append(held, memory)
		return nil
	case "keep-touching":
		for !exists(value) {
			for _, memory := range held {
				touch(memory)
			}
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	case "gap":
		gap(value)
		return nil
	case "grow":
		return grow(value, syscall.MAP_PRIVATE)
	case "share":
		return grow(value, syscall.MAP_SHARED)
	case "crowd":
		return crowd(value)
	case "files":
		return emptyFiles(value)
	case "child":
		out, err := exec.Command("/proc/self/exe", value, "exit=0").CombinedOutput()
		fmt.Printf("child %v %s\n", err, out)
		return nil
	case "free":
		for _, memory := range held {
			if err := syscall.Munmap(memory); err != nil {
				return err
			}
		}
		held = nil
		return nil
	case "read":
		return readFile(value)
	case "write":
		return writeFile(value)
	case "wait":
		for !exists(value) {
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	case "say":
		fmt.Println(value)
		return nil
	case "exit":
		status, err := strconv.Atoi(value)
		if err == nil {
			os.Exit(status)
		}
		return err
	case "term":
		status, err := strconv.ParseInt(value, 10, 8)
		atTerm.Store(int32(status))
		return err
	case "sleep":
		select {}
	}
	return errors.New("no such step")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func mapped(bytes string, flags int) ([]byte, error) {
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return nil, err
	}
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANONYMOUS|flags)
}

// touch writes to every page; the content differs from page to page, so that
// compressed swap does not hold it for nothing.
func touch(memory []byte) {
	x := uint64(time.Now().UnixNano()) | 1
	for page := 0; page < len(memory); page += 4096 {
		for i := page; i < page+256 && i < len(memory); i += 8 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			memory[i] = byte(x)
		}
	}
}

// gap finds for how long the program stands still, and not only where it waits for one of its pages.
func gap(file string) {
	var largest time.Duration
	last := time.Now()
	for page := 0; !exists(file); page++ {
		for _, memory := range held {
			memory[page*4096%len(memory)]++
		}
		now := time.Now()
		largest, last = max(largest, now.Sub(last)), now
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("gap %s %d\n", file, largest.Microseconds())
}

// crowd allocates in many threads, each of which stands far above memory.high before it is held back.
func crowd(bytes string) error {
	const threads = 16
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	done := make(chan bool)
	for range threads {
		memory, err := mapped(strconv.Itoa(n/threads), syscall.MAP_PRIVATE)
		if err != nil {
			return err
		}
		held = append(held, memory)
		go func() {
			runtime.LockOSThread()
			touch(memory)
			done <- true
		}()
	}
	for range threads {
		<-done
	}
	return nil
}

func grow(bytes string, flags int) error {
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	for done := 0; done < n; done += 1 << 20 {
		memory, err := mapped(strconv.Itoa(1<<20), flags)
		if err != nil {
			return err
		}
		touch(memory)
		held = append(held, memory)
		if done>>20%16 == 15 {
			fmt.Printf("grown %d\n", done+1<<20)
		}
	}
	return nil
}

func readFile(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	buffer := make([]byte, 256<<10)
	for {
		if _, err := in.Read(buffer); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func writeFile(value string) error {
	name, bytes, _ := strings.Cut(value, ":")
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	buffer := make([]byte, 256<<10)
	touch(buffer)
	for written := 0; written < n; written += len(buffer) {
		if _, err := out.Write(buffer); err != nil {
			out.Close()
			return err
		}
	}
	return out.Close()
}

func emptyFiles(value string) error {
	dir, count, _ := strings.Cut(value, ":")
	n, err := strconv.Atoi(count)
	for i := 0; i < n && err == nil; i++ {
		err = os.WriteFile(fmt.Sprint(dir, "/", i), nil, 0o600)
	}
	return err
}
