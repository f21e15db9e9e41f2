package cgroup

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// FormatLimit returns the text of a number of bytes in a file; "max" for Max.
func FormatLimit(bytes uint64) string {
	if bytes == Max {
		return "max"
	}
	return strconv.FormatUint(bytes, 10)
}

// ParseLimit parses a number of bytes or "max".
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

// longestValue, in bytes, is longer than any value, so that a new value is no longer than the file.
const longestValue = 24

// Overwriting pads a text with blanks to overwrite an ordinary file of this size, which stands for a cgroup's, with one write. Because the file
// is not truncated, a reader finds the old or the new value, as with the kernel's files, even if the writer is killed.
func Overwriting(text string, size int64) []byte {
	return fmt.Appendf(nil, "%-*s\n", max(longestValue, int(size)-1), text)
}

// Readable returns a short text for people: "1.9Gi", or "max".
func Readable(bytes uint64) string { return Apart(bytes)[0] }

// Apart is Readable for the values of one sentence: different values get different texts.
func Apart(values ...uint64) []string {
	texts := quantity.Apart(values...)
	for i, value := range values {
		if value == Max {
			texts[i] = FormatLimit(Max)
		}
	}
	return texts
}

// Log returns a value for the log; its JSON form has the text of the file.
func Log(bytes uint64) quantity.Logged { return LogApart(bytes)[0] }

// LogApart is Log for the values of one line.
func LogApart(values ...uint64) []quantity.Logged {
	all := make([]quantity.Logged, len(values))
	for i, text := range Apart(values...) {
		all[i] = quantity.Logged{Text: text, Exact: FormatLimit(values[i])}
	}
	return all
}
