package cgroup

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// FormatLimit is the text of a number of bytes in a file; "max" for Max.
func FormatLimit(bytes uint64) string {
	if bytes == Max {
		return "max"
	}
	return strconv.FormatUint(bytes, 10)
}

// ParseLimit reads a file with one number of bytes, or "max".
func ParseLimit(data []byte) (uint64, error) {
	text := bytes.TrimSpace(data)
	if string(text) == "max" {
		return Max, nil
	}
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of bytes or max", string(text))
	}
	return v, nil
}

// longestValue is more than a value in a file has, in bytes, so that the next one is no longer than the file.
const longestValue = 24

// Overwriting is a text as it is written, in one piece, over an ordinary file of some size that plays a cgroup's: blanks replace what
// the file has beyond it. The file is not truncated, so that a reader finds the old value or the new one, as with the kernel's
// files, also where the writer was killed.
func Overwriting(text string, size int64) []byte {
	return fmt.Appendf(nil, "%-*s\n", max(longestValue, int(size)-1), text)
}

// Readable is FormatLimit for people: "1.9Gi", or "max".
func Readable(bytes uint64) string { return Apart(bytes)[0] }

// Apart is Readable for the values of one sentence: those that differ read differently.
func Apart(values ...uint64) []string {
	texts := quantity.Apart(values...)
	for i, value := range values {
		if value == Max {
			texts[i] = FormatLimit(Max)
		}
	}
	return texts
}

// Log is a value for the log; its JSON form has the text of the file.
func Log(bytes uint64) quantity.Logged { return LogApart(bytes)[0] }

// LogApart is Log for the values of one line.
func LogApart(values ...uint64) []quantity.Logged {
	all := make([]quantity.Logged, len(values))
	for i, text := range Apart(values...) {
		all[i] = quantity.Logged{Text: text, Exact: FormatLimit(values[i])}
	}
	return all
}
