// Package quantity reads Kubernetes quantities ("64Mi", "1.5G", "4096") as whole bytes and refuses what is no number of
// bytes: negative, fractional and too large ones. It is also the one way to write sizes: Format where the text is read again,
// Short and Apart for people, Log for the log.
// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
package quantity

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// longest is more than any number of bytes takes to write.
	longest = 64
	// largestExponent bounds the work for a short text like 1e999999999, whose digits would fill the memory.
	largestExponent = 30
)

// Why a text is no number of bytes; errors.Is separates them.
var (
	ErrFormat   = errors.New("is not a quantity such as 64Mi, 2G or 4096")
	ErrNegative = errors.New("is negative")
	ErrFraction = errors.New("is not a whole number of bytes")
	ErrTooLarge = errors.New("is more than a signed 64-bit number of bytes")
)

// Bytes is a number of bytes with the text form of a quantity.
type Bytes uint64

// Parse reads a quantity as a number of bytes, at most 2^63-1. The error quotes the text.
func Parse(text string) (uint64, error) {
	bytes, err := parse(text)
	if err != nil {
		return 0, fmt.Errorf("%s %w", shown(text), err)
	}
	return bytes, nil
}

// ParseRoundedUp is Parse, but rounds a fraction of a byte up as the kubelet does.
func ParseRoundedUp(text string) (uint64, error) {
	bytes, err := parse(text)
	if err != nil && !errors.Is(err, ErrFraction) {
		return 0, fmt.Errorf("%s %w", shown(text), err)
	}
	return bytes, nil
}

// parse returns the bytes rounded up together with ErrFraction.
func parse(text string) (uint64, error) {
	if len(text) > longest || !strings.ContainsAny(text, "0123456789") {
		return 0, ErrFormat
	}
	if exponent, ok := exponentOf(text); ok && (exponent > largestExponent || exponent < -largestExponent) {
		return 0, fmt.Errorf("has an exponent beyond %d", largestExponent)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, ErrFormat
	}
	if q.Sign() < 0 {
		return 0, ErrNegative
	}
	// A value beyond int64 is cut to the largest one while it is read, which no memory has: both are refused.
	if q.Cmp(*resource.NewQuantity(math.MaxInt64, resource.DecimalSI)) >= 0 {
		return 0, ErrTooLarge
	}
	bytes := q.Value() // rounds up
	if q.Cmp(*resource.NewQuantity(bytes, resource.DecimalSI)) != 0 {
		return uint64(bytes), ErrFraction
	}
	return uint64(bytes), nil
}

// exponentOf returns the number after an e or E; "1E" and "1Ei" are exabytes.
func exponentOf(text string) (int, bool) {
	i := strings.LastIndexAny(text, "eE")
	if i < 0 {
		return 0, false
	}
	exponent, err := strconv.Atoi(text[i+1:])
	if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt, true
	}
	return exponent, err == nil
}

// shown quotes a text, escaped and shortened.
func shown(text string) string {
	if len(text) > longest {
		return strconv.Quote(text[:longest]) + "…"
	}
	return strconv.Quote(text)
}

var units = [...]string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}

// Format writes bytes as the shortest exact binary quantity: 67108864 is "64Mi", 1000 is "1000".
func Format(bytes uint64) string {
	unit := 0
	for bytes > 0 && bytes%1024 == 0 && unit < len(units)-1 {
		bytes /= 1024
		unit++
	}
	return strconv.FormatUint(bytes, 10) + units[unit]
}

// Numbers of significant digits: fewest says enough where a size stands alone, and with most a page of a terabyte is seen.
const fewest, most = 4, 10

// Short writes bytes for people, in the largest unit with four significant digits: "64Mi", "122.7Gi".
func Short(bytes uint64) string { return short(bytes, fewest) }

func short(bytes uint64, digits int) string {
	unit, rest := 0, float64(bytes)
	for rest >= 1024 && unit < len(units)-1 {
		rest, unit = rest/1024, unit+1
	}
	text := strconv.FormatFloat(rest, 'g', digits, 64)
	if text == "1024" && unit < len(units)-1 { // rounded up to the next unit
		return "1" + units[unit+1]
	}
	return text + units[unit]
}

// Apart writes the sizes of one sentence for people as Short does, with as many digits more as it takes for those that differ
// to read differently: 4Gi and a page less are "4Gi" and "3.999996Gi". Sizes that are closer than that are plain bytes.
func Apart(sizes ...uint64) []string {
	for digits := fewest; digits <= most; digits++ {
		if all := texts(sizes, func(size uint64) string { return short(size, digits) }); distinct(sizes, all) {
			return all
		}
	}
	return texts(sizes, func(size uint64) string { return strconv.FormatUint(size, 10) })
}

func texts(sizes []uint64, text func(uint64) string) []string {
	all := make([]string, len(sizes))
	for i, size := range sizes {
		all[i] = text(size)
	}
	return all
}

// distinct reports whether no two sizes that differ have one text.
func distinct(sizes []uint64, texts []string) bool {
	of := make(map[string]uint64, len(sizes))
	for i, text := range texts {
		if size, taken := of[text]; taken && size != sizes[i] {
			return false
		}
		of[text] = sizes[i]
	}
	return true
}

// Logged is a size in the log: for people in the log's text form, exact in its JSON form.
type Logged struct {
	// Text for people.
	Text string
	// Exact is marshalled as JSON.
	Exact any
}

// String is Text.
func (l Logged) String() string { return l.Text }

// MarshalJSON marshals Exact.
func (l Logged) MarshalJSON() ([]byte, error) { return json.Marshal(l.Exact) }

// Log returns a size for the log, a number of bytes in its JSON form.
func Log(bytes uint64) Logged { return LogApart(bytes)[0] }

// LogApart is Log for the sizes of one line, as Apart writes them.
func LogApart(sizes ...uint64) []Logged {
	all := make([]Logged, len(sizes))
	for i, text := range Apart(sizes...) {
		all[i] = Logged{Text: text, Exact: sizes[i]}
	}
	return all
}

// String is Format.
func (b Bytes) String() string { return Format(uint64(b)) }

// MarshalText writes the shortest exact binary quantity.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads a quantity.
func (b *Bytes) UnmarshalText(text []byte) error {
	bytes, err := Parse(string(text))
	if err != nil {
		return err
	}
	*b = Bytes(bytes)
	return nil
}
