package quantity

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "4096": 4096, "64Mi": 64 << 20, "1.5Gi": 3 << 29, "2G": 2e9, "1e3": 1000, "1E": 1e18, "7Ei": 7 << 60,
		"128974848000m": 128974848, "+1Ki": 1024, "9223372036854775806": 9223372036854775806,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestParseRoundedUp(t *testing.T) {
	for text, want := range map[string]uint64{"4096": 4096, "1500m": 2, "0.5": 1, "1e-20": 1, "1.0001Ki": 1025} {
		if got, err := ParseRoundedUp(text); err != nil || got != want {
			t.Errorf("ParseRoundedUp(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"-0.5": `"-0.5" is negative`, "1e999999999": `"1e999999999" has an exponent beyond 30`, "9.5Ei": `"9.5Ei" is more than a signed 64-bit number of bytes`,
	} {
		if got, err := ParseRoundedUp(text); err == nil || err.Error() != want || got != 0 {
			t.Errorf("ParseRoundedUp(%q) = %d, %v, want %s", text, got, err, want)
		}
	}
}

func TestParseRefusesWhatIsNoNumberOfBytes(t *testing.T) {
	tests := map[string]struct {
		text, want string
		is         error
	}{
		"empty":           {"", `"" is not a quantity such as 64Mi, 2G or 4096`, ErrFormat},
		"only a unit":     {"Gi", `"Gi" is not a quantity such as 64Mi, 2G or 4096`, ErrFormat},
		"wrong unit":      {"1GB", `"1GB" is not a quantity such as 64Mi, 2G or 4096`, ErrFormat},
		"space":           {"1 Gi", `"1 Gi" is not a quantity such as 64Mi, 2G or 4096`, ErrFormat},
		"control":         {"1\x00\x1b[2J", `"1\x00\x1b[2J" is not a quantity such as 64Mi, 2G or 4096`, ErrFormat},
		"negative":        {"-1Gi", `"-1Gi" is negative`, ErrNegative},
		"half a byte":     {"0.5", `"0.5" is not a whole number of bytes`, ErrFraction},
		"milli":           {"1500m", `"1500m" is not a whole number of bytes`, ErrFraction},
		"nano":            {"1n", `"1n" is not a whole number of bytes`, ErrFraction},
		"below nano":      {"1e-20", `"1e-20" is not a whole number of bytes`, ErrFraction},
		"2^63":            {"8Ei", `"8Ei" is more than a signed 64-bit number of bytes`, ErrTooLarge},
		"digits":          {"99999999999999999999", `"99999999999999999999" is more than a signed 64-bit number of bytes`, ErrTooLarge},
		"exponent":        {"1e999999999", `"1e999999999" has an exponent beyond 30`, nil},
		"small exponent":  {"1E-2147483648", `"1E-2147483648" has an exponent beyond 30`, nil},
		"exponent beyond": {"1e99999999999999999999", `"1e99999999999999999999" has an exponent beyond 30`, nil},
		"long":            {strings.Repeat("9", 65), `"` + strings.Repeat("9", 64) + `"… is not a quantity such as 64Mi, 2G or 4096`, ErrFormat},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.text)
			if err == nil || err.Error() != tc.want || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("Parse(%q) = %v, want %s", tc.text, err, tc.want)
			}
		})
	}
}

func TestBytesTextIsExactAndShort(t *testing.T) {
	for bytes, want := range map[Bytes]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1Ki", 64 << 20: "64Mi", 2148 << 20: "2148Mi", 1 << 60: "1Ei", 134987354112: "131823588Ki",
	} {
		text, err := bytes.MarshalText()
		if err != nil || string(text) != want {
			t.Errorf("text of %d = %q, %v, want %q", uint64(bytes), text, err, want)
		}
		var back Bytes
		if err := back.UnmarshalText(text); err != nil || back != bytes {
			t.Errorf("%q reads as %d, %v", text, back, err)
		}
	}
	kept := Bytes(7)
	if err := kept.UnmarshalText([]byte("-1")); err == nil || kept != 7 {
		t.Errorf("a wrong text gives %v and %d, want an error and the old value", err, kept)
	}
}

// FuzzParse: what is accepted is exactly what the Kubernetes library reads.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"1Gi", "1.5Gi", "1e3", "1E", "0x10", "1e3Gi", "-1", "1.", ".5Gi", "1e-1", "8Ei", "1e999999999", "00001Gi", "1e30"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		bytes, err := Parse(text)
		if err != nil {
			return
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			t.Fatalf("Parse accepts %q: %v", text, err)
		}
		if q.Cmp(*resource.NewQuantity(int64(bytes), resource.BinarySI)) != 0 {
			t.Errorf("Parse(%q) = %d, the library reads %s", text, bytes, q.AsDec())
		}
		if again, err := Parse(Format(bytes)); err != nil || again != bytes {
			t.Errorf("Format(%d) = %q reads as %d, %v", bytes, Format(bytes), again, err)
		}
	})
}

func TestShort(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0", 1: "1", 1000: "1000", 1023: "1023", 1024: "1Ki", 1536: "1.5Ki", 64 << 20: "64Mi", 127504384: "121.6Mi",
		131766128640: "122.7Gi", 41038409728: "38.22Gi", 1003 << 20: "1003Mi", 10 << 30: "10Gi", 130 << 30: "130Gi",
		1<<30 - 1: "1Gi", 1<<30 - 6<<10: "1Gi", 1<<64 - 1: "16Ei",
	} {
		if got := Short(bytes); got != want {
			t.Errorf("%d bytes: %q, want %q", bytes, got, want)
		}
	}
}

// Sizes that differ read differently in one sentence, down to the byte.
func TestApart(t *testing.T) {
	const gi, page = 1 << 30, 4 << 10
	for name, test := range map[string]struct {
		sizes []uint64
		want  []string
	}{
		"nothing":                      {nil, []string{}},
		"far apart":                    {[]uint64{0, 131766128640, 130 * gi}, []string{"0", "122.7Gi", "130Gi"}},
		"equal":                        {[]uint64{131766128640, 131766128640}, []string{"122.7Gi", "122.7Gi"}},
		"a page short of 4Gi":          {[]uint64{4*gi - page, 4 * gi, 4 * gi}, []string{"3.999996Gi", "4Gi", "4Gi"}},
		"a page more than 4Gi":         {[]uint64{4 * gi, 4*gi + page}, []string{"4Gi", "4.000004Gi"}},
		"a page short of a Ti":         {[]uint64{1024*gi - page, 1024 * gi}, []string{"1023.999996Gi", "1Ti"}},
		"a megabyte of a hundred":      {[]uint64{100 * gi, 100*gi - 1<<20}, []string{"100Gi", "99.999Gi"}},
		"a byte":                       {[]uint64{133034381313, 133034381312}, []string{"133034381313", "133034381312"}},
		"a byte, beyond a float's":     {[]uint64{1<<63 - 1, 1<<63 - 2}, []string{"9223372036854775807", "9223372036854775806"}},
		"no more digits than it takes": {[]uint64{131766128640, 131766128640 + 8<<20}, []string{"122.717Gi", "122.725Gi"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Apart(test.sizes...); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestLogIsForPeopleAndExactInJSON(t *testing.T) {
	size := Log(131766128640)
	exact, err := json.Marshal(size)
	if text := fmt.Sprint(size); text != "122.7Gi" || string(exact) != "131766128640" || err != nil {
		t.Errorf("%s, %s, %v", text, exact, err)
	}
}
