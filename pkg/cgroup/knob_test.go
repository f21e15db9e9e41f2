package cgroup

import "testing"

func TestKnobsHaveBytesOrNodes(t *testing.T) {
	for name, test := range map[string]struct {
		knob         Knob
		text, format string
		value        uint64
		err          string
	}{
		"bytes":     {MemoryMin, "4096\n", "4096", 4096, ""},
		"no limit":  {MemoryHigh, "max\n", "max", Max, ""},
		"no number": {MemoryLow, "many", "0", 0, `"many" is not a number of bytes or max`},
		"nodes":     {CpusetMems, "0-1,3\n", "0-1,3", 0b1011, ""},
		"no nodes":  {CpusetMems, "\n", "", 0, ""},
		"no list":   {CpusetMems, "1-0", "", 0, `node list "1-0": range "1-0" runs backwards`},
	} {
		t.Run(name, func(t *testing.T) {
			value, err := test.knob.Parse([]byte(test.text))
			if value != test.value || test.knob.Format(value) != test.format {
				t.Errorf("got %d, %q; want %d, %q", value, test.knob.Format(value), test.value, test.format)
			}
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("the error is %v, want %q", err, test.err)
			}
		})
	}
}
