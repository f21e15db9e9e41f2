package world

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// controllers are those of the hierarchy.
var controllers = []string{"cpuset", "cpu", "memory", "hugetlb", "pids"}

// file is a file of a cgroup.
type file struct {
	controller string // that it needs; "" is none
	root       bool   // the root has it, too
	since      [2]int // the kernel's version
	show       func(*Kernel, *group) string
	number     func(*group) *uint64 // shown as bytes, in place of show
	write      func(k *Kernel, g *group, text string, flags int) error
}

var table map[string]file

func init() {
	table = map[string]file{
		"cgroup.procs":       {root: true, show: (*Kernel).showProcs},
		"cgroup.events":      {show: (*Kernel).showPopulated},
		"cgroup.controllers": {root: true, show: func(_ *Kernel, g *group) string { return strings.Join(all(g.has), " ") + "\n" }},
		"cgroup.subtree_control": {root: true, show: func(_ *Kernel, g *group) string {
			return strings.Join(all(func(c string) bool { return g.enabled[c] }), " ") + "\n"
		}, write: (*Kernel).enable},
		"cpu.stat":              {root: true, show: (*Kernel).showCPU},
		"memory.max":            {controller: "memory", number: func(g *group) *uint64 { return &g.max }, write: (*Kernel).writeMax},
		"memory.high":           {controller: "memory", number: func(g *group) *uint64 { return &g.high }, write: (*Kernel).writeHigh},
		"memory.min":            value(func(g *group) *uint64 { return &g.min }),
		"memory.low":            value(func(g *group) *uint64 { return &g.low }),
		"memory.swap.max":       value(func(g *group) *uint64 { return &g.swapMax }),
		"memory.current":        {controller: "memory", number: func(g *group) *uint64 { return &g.current }},
		"memory.peak":           {controller: "memory", since: [2]int{5, 19}, number: func(g *group) *uint64 { return &g.peak }},
		"memory.swap.current":   {controller: "memory", number: func(g *group) *uint64 { return &g.swapped }},
		"memory.oom.group":      {controller: "memory", show: func(_ *Kernel, g *group) string { return map[bool]string{false: "0\n", true: "1\n"}[g.oomGroup] }, write: writeOOMGroup},
		"memory.events":         {controller: "memory", show: func(_ *Kernel, g *group) string { return eventsText(g.events) }},
		"memory.events.local":   {controller: "memory", show: func(_ *Kernel, g *group) string { return eventsText(g.local) }},
		"memory.stat":           {controller: "memory", root: true, show: (*Kernel).showStat},
		"memory.numa_stat":      {controller: "memory", root: true, show: (*Kernel).showNUMAStat},
		"memory.pressure":       {root: true, show: (*Kernel).showPressure}, // of cgroup core, not of the controller
		"memory.reclaim":        {controller: "memory", root: true, since: [2]int{5, 19}, write: (*Kernel).writeReclaim},
		"cpuset.mems":           {controller: "cpuset", show: func(_ *Kernel, g *group) string { return g.mems.String() + "\n" }, write: (*Kernel).writeMems},
		"cpuset.mems.effective": {controller: "cpuset", root: true, show: func(_ *Kernel, g *group) string { return g.effective.String() + "\n" }},
	}
	for name, text := range map[string]string{"cpuset.cpus": "", "cpu.max": "max 100000", "cpu.weight": "100", "pids.max": "max", "hugetlb.2MB.max": "max", "hugetlb.2MB.rsvd.max": "max", "cpu.idle": "0",
		"memory.swap.high": "max", "memory.zswap.max": "max"} {
		controller, _, _ := strings.Cut(name, ".")
		table[name] = file{controller: controller, show: func(_ *Kernel, g *group) string {
			if written, ok := g.others[name]; ok {
				return written + "\n"
			}
			return text + "\n"
		}, write: func(_ *Kernel, g *group, text string, _ int) error {
			g.others[name] = text
			return nil
		}}
	}
}

func (k *Kernel) lookup(g *group, name string) (file, bool) {
	f, ok := table[name]
	return f, ok && (f.root || g.parent != nil) && (f.controller == "" || g.has(f.controller)) && k.atLeast(f.since[0], f.since[1])
}

// list names the files and the cgroups below.
func (k *Kernel) list(g *group) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if _, ok := k.lookup(g, name); ok {
			names = append(names, name)
		}
	}
	for _, child := range g.children {
		names = append(names, path.Base(child.name))
	}
	return names
}

// show is what a file says. One that cannot be read, or written, is EINVAL (kernel/cgroup/cgroup.c, cgroup_seqfile_show, cgroup_file_write).
func (k *Kernel) show(g *group, name string) (string, error) {
	f, ok := k.lookup(g, name)
	switch {
	case !ok:
		return "", unix.ENOENT
	case f.number != nil:
		return cgroup.FormatLimit(*f.number(g)) + "\n", nil
	case f.show == nil:
		return "", unix.EINVAL
	}
	return f.show(k, g), nil
}

// write opens a file, writes to it and closes it. Root may open what nobody can write.
func (k *Kernel) write(g *group, name, text string, flags int) error {
	f, ok := k.lookup(g, name)
	if !ok {
		return unix.ENOENT
	}
	err := error(unix.EINVAL)
	if f.write != nil {
		err = f.write(k, g, strings.TrimSpace(text), flags)
	}
	if err == nil { // fs/read_write.c, vfs_write
		g.notify(name, unix.IN_MODIFY)
	}
	g.notify(name, unix.IN_CLOSE_WRITE) // also where the write failed: it was open for writing
	return err
}

// value is a file with a number of bytes.
func value(of func(*group) *uint64) file {
	return file{controller: "memory", number: of, write: func(_ *Kernel, g *group, text string, _ int) error {
		v, err := memparse(text)
		if err == nil {
			*of(g) = v
		}
		return err
	}}
}

// memparse reads bytes as the kernel does (mm/page_counter.c, page_counter_memparse; lib/cmdline.c, memparse; lib/vsprintf.c, simple_strtoull):
// decimal, hexadecimal or octal digits, of which 64 bits count, with a suffix, rounded down to pages; nothing at all is 0.
func memparse(text string) (uint64, error) {
	if text == "max" {
		return cgroup.Max, nil
	}
	base, rest := uint64(10), strings.ToLower(text)
	switch {
	case len(rest) > 2 && strings.HasPrefix(rest, "0x") && strings.IndexByte(digits, rest[2]) >= 0:
		base, rest = 16, rest[2:]
	case strings.HasPrefix(rest, "0"):
		base = 8
	}
	var v uint64
	for ; rest != ""; rest = rest[1:] {
		digit := strings.IndexByte(digits[:base], rest[0])
		if digit < 0 {
			break
		}
		v = v*base + uint64(digit)
	}
	if power := strings.Index("kmgtpe", rest); len(rest) == 1 && power >= 0 {
		v <<= 10 * (1 + power)
	} else if rest != "" {
		return 0, unix.EINVAL
	}
	if v >= 1<<63-page { // PAGE_COUNTER_MAX
		return cgroup.Max, nil
	}
	return v &^ (page - 1), nil
}

const digits = "0123456789abcdef"

// unblocked reports whether a write of a limit leaves out the reclaim: Linux 6.17 and later, for a file that was opened with O_NONBLOCK.
func (k *Kernel) unblocked(flags int) bool { return flags&unix.O_NONBLOCK != 0 && k.atLeast(6, 17) }

func (k *Kernel) writeMax(g *group, text string, flags int) error {
	v, err := memparse(text)
	if err != nil {
		return err
	}
	if g.max = v; !k.unblocked(flags) {
		kills := len(k.kills)
		k.shrinkTo(g, v, true)
		k.later(k.kills[kills:])
	}
	return nil
}

func (k *Kernel) writeHigh(g *group, text string, flags int) error {
	v, err := memparse(text)
	if err != nil {
		return err
	}
	if g.high = v; !k.unblocked(flags) {
		k.shrinkTo(g, v, false)
	}
	return nil
}

func writeOOMGroup(_ *Kernel, g *group, text string, _ int) error {
	if text != "0" && text != "1" {
		return unix.EINVAL
	}
	g.oomGroup = text == "1"
	return nil
}

// writeReclaim is mm/memcontrol.c, memory_reclaim (from 6.16 on mm/vmscan.c, user_proactive_reclaim).
func (k *Kernel) writeReclaim(g *group, text string, _ int) error {
	if text == "" || strings.IndexByte(digits[:10], text[0]) < 0 {
		return unix.EINVAL
	}
	amount, option, has := strings.Cut(text, " ")
	want, err := memparse(amount)
	swappiness := 60
	if err == nil && has {
		number, ok := strings.CutPrefix(strings.TrimSpace(option), "swappiness=")
		if swappiness, err = strconv.Atoi(number); !ok || err != nil || swappiness < 0 || swappiness > 200 || !k.atLeast(6, 9) {
			return unix.EINVAL
		}
	}
	if err != nil {
		return unix.EINVAL
	}
	got := k.reclaim(scan{target: g, nodes: k.nodes, swap: swappiness > 0}, want)
	g.gave += got
	if got < want {
		return unix.EAGAIN
	}
	return nil
}

// writeMems is kernel/cgroup/cpuset.c, update_nodemask and validate_change.
func (k *Kernel) writeMems(g *group, text string, _ int) error {
	mems, err := nodeset.Parse(text)
	switch {
	case err != nil || !mems.SubsetOf(k.nodes):
		return unix.EINVAL
	case mems.Empty() && !g.mems.Empty() && g.processes > 0:
		return unix.ENOSPC
	}
	g.mems = mems
	k.migrate(g, g.parent.effective)
	return nil
}

// enable is a write of cgroup.subtree_control. A controller that is switched off takes its files with it, and they come back with their defaults.
// But memory stays behind them where io is enabled, as runc does, which needs it: only limits are lost (cgroup_control, mem_cgroup_css_reset).
func (k *Kernel) enable(g *group, text string, _ int) error {
	for word := range strings.FieldsSeq(text) {
		if !slices.Contains(controllers, word[1:]) || word[0] != '+' && word[0] != '-' {
			return unix.EINVAL
		}
		on, name := word[0] == '+', word[1:]
		switch {
		case on && !g.has(name):
			return unix.ENOENT
		case on && g.parent != nil && g.hasProcess(): // cgroup-v2.rst, "No Internal Process Constraint"
			return unix.EBUSY
		case !on && slices.ContainsFunc(g.children, func(c *group) bool { return c.enabled[name] }):
			return unix.EBUSY
		}
		if g.enabled[name] = on; !on {
			k.reset(g, name)
		}
	}
	return nil
}

func (k *Kernel) reset(g *group, controller string) {
	for _, child := range g.children {
		child.watches = slices.DeleteFunc(child.watches, func(w *watch) bool { return table[w.file].controller == controller }) // of inodes that are gone
		before := child.values
		child.values = defaults()
		switch controller {
		case "memory":
			child.mems, child.oomGroup, child.others = before.mems, before.oomGroup, before.others
		case "cpuset":
			child.values, child.mems = before, 0
			k.migrate(child, g.effective)
		default:
			child.values = before
		}
	}
}

// all are the controllers that something holds for.
func all(holds func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return !holds(c) })
}

func (k *Kernel) showProcs(g *group) string {
	var b strings.Builder
	for _, p := range k.processes {
		if p.group == g {
			fmt.Fprintln(&b, p.pid)
		}
	}
	return b.String()
}

func (k *Kernel) showPopulated(g *group) string {
	return fmt.Sprintf("populated %d\nfrozen 0\n", min(g.processes, 1))
}

func (k *Kernel) showCPU(g *group) string {
	used := g.cpu.Microseconds()
	return fmt.Sprintf("usage_usec %d\nuser_usec %d\nsystem_usec 0\n", used, used)
}

func eventsText(e [eventKinds]uint64) string {
	return fmt.Sprintf("low %d\nhigh %d\nmax %d\noom %d\noom_kill %d\noom_group_kill %d\n", e[eventLow], e[eventHigh], e[eventMax], e[eventOOM],
		e[eventOOMKill], e[eventOOMGroupKill])
}

func (k *Kernel) showPressure(g *group) string {
	g.updatePressure(k.now)
	return g.pressure[some].text("some") + g.pressure[full].text("full")
}

// showStat is memory.stat; pgsteal, pgscan and the refaults are pages, the rest bytes.
func (k *Kernel) showStat(g *group) string {
	file := g.total(inactive, active, dirty)
	return fmt.Sprintf("anon %d\nfile %d\nkernel %d\nkernel_stack 0\npagetables 0\npercpu 0\nsock 0\nvmalloc 0\nshmem %d\nfile_mapped 0\nfile_dirty %d\nfile_writeback 0\n"+
		"swapcached 0\ninactive_anon %d\nactive_anon %d\ninactive_file %d\nactive_file %d\nunevictable 0\nslab_reclaimable 0\nslab_unreclaimable %d\nslab %d\n"+
		"workingset_refault_anon 0\nworkingset_refault_file %d\npgscan %d\npgsteal %d\n",
		g.total(anon), file+g.total(shmem), g.total(slab), g.total(shmem), g.total(dirty),
		g.total(shmem), g.total(anon), g.total(inactive, dirty), g.total(active), g.total(slab), g.total(slab),
		g.refault/page, g.stolen/page, g.stolen/page)
}

func (k *Kernel) showNUMAStat(g *group) string {
	var b strings.Builder
	for _, line := range []struct {
		name string
		of   []kind
	}{{"anon", []kind{anon}}, {"file", []kind{inactive, active, dirty, shmem}}, {"kernel_stack", nil}, {"pagetables", nil}, {"shmem", []kind{shmem}},
		{"file_mapped", nil}, {"file_dirty", []kind{dirty}}, {"inactive_anon", []kind{shmem}}, {"active_anon", []kind{anon}}, {"inactive_file", []kind{inactive, dirty}},
		{"active_file", []kind{active}}, {"slab_reclaimable", nil}, {"slab_unreclaimable", []kind{slab}}} {
		b.WriteString(line.name)
		for node := range k.nodes.All() {
			fmt.Fprintf(&b, " N%d=%d", node, sumOf(g.all[node:node+1], line.of))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
