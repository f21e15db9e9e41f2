package cgroupfs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Pressure is memory.pressure (PSI, https://docs.kernel.org/accounting/psi.html): shares of time in which some or all tasks
// waited for memory.
type Pressure struct{ Some, Full PressureLine }

// PressureLine is one line of memory.pressure. Averages are percentages, Total is in microseconds.
type PressureLine struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Pressure reads memory.pressure; false if the kernel has none (built without PSI, or psi=0).
func (t *Tree) Pressure(cgroup string) (Pressure, bool, error) {
	there := false
	p, err := parse(t, cgroup, "memory.pressure", func(text string) (Pressure, error) {
		there = text != ""
		return parsePressure(text)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || t.Lacks(cgroup, err) {
		err = nil
	}
	return p, there && err == nil, err
}

// parsePressure reads lines like "some avg10=0.00 avg60=0.00 avg300=0.00 total=0". Unknown lines and fields are skipped, because the
// kernel may add some.
func parsePressure(text string) (Pressure, error) {
	var p Pressure
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		into := map[string]*PressureLine{"some": &p.Some, "full": &p.Full}[fields[0]]
		if into == nil {
			continue
		}
		for _, field := range fields[1:] {
			if err := into.set(field); err != nil {
				return Pressure{}, fmt.Errorf("line %q: %w", strings.TrimSpace(line), err)
			}
		}
	}
	return p, nil
}

func (l *PressureLine) set(field string) (err error) {
	name, number, _ := strings.Cut(field, "=")
	switch name {
	case "avg10":
		l.Avg10, err = strconv.ParseFloat(number, 64)
	case "avg60":
		l.Avg60, err = strconv.ParseFloat(number, 64)
	case "avg300":
		l.Avg300, err = strconv.ParseFloat(number, 64)
	case "total":
		l.Total, err = strconv.ParseUint(number, 10, 64)
	}
	if err != nil {
		return fmt.Errorf("%s is %q, want a number", name, number)
	}
	return nil
}
