package nriplugin

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// Version is a released version of NRI or of a runtime. The zero value is an unknown version, which is older than all others.
type Version struct{ Major, Minor, Patch int }

var numbers = regexp.MustCompile(`^v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(-[0-9A-Za-z.-]*)?`)

// ParseVersion reads the leading numbers of "v0.12.3", "1.34.2", "1.7.28-0ubuntu1", or a Go pseudo-version such as
// "v0.9.1-0.20250219030224-e597e7849f24", which is older than 0.9.1. Any other text is the zero value.
func ParseVersion(text string) Version {
	match := numbers.FindStringSubmatch(strings.TrimSpace(text))
	if match == nil {
		return Version{}
	}
	version := Version{number(match[1]), number(match[2]), number(match[3])}
	if pseudoVersion.MatchString(match[4]) && version.Patch > 0 {
		version.Patch--
	}
	return version
}

// pseudoVersion matches the end of a version that the Go tool made from a commit.
var pseudoVersion = regexp.MustCompile(`^-(?:.*\.)?[0-9]{14}-[0-9a-f]{12}$`)

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // at most six digits, or none
	return n
}

// AtLeast reports whether v is the given version or a later one.
func (v Version) AtLeast(major, minor, patch int) bool {
	return cmp.Or(cmp.Compare(v.Major, major), cmp.Compare(v.Minor, minor), cmp.Compare(v.Patch, patch)) >= 0
}

// Known is false for the zero value.
func (v Version) Known() bool { return v != Version{} }

// String returns "0.12.3", or "unknown".
func (v Version) String() string {
	if !v.Known() {
		return "unknown"
	}
	return strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor) + "." + strconv.Itoa(v.Patch)
}

// shipped is the NRI version in a runtime's releases from one on.
type shipped struct{ from, nri Version }

// Runtimes before NRI 0.12 do not report its version, and NRI's own table reads only exact release tags, not a
// distribution's "1.7.28-0ubuntu1" and not CRI-O's versions, which have no "v".
var (
	containerd = []shipped{
		{Version{1, 7, 0}, Version{0, 3, 0}},
		{Version{1, 7, 7}, Version{0, 4, 0}},
		{Version{1, 7, 14}, Version{0, 6, 0}},
		{Version{1, 7, 16}, Version{0, 6, 1}},
		{Version{1, 7, 26}, Version{0, 8, 0}},
		{Version{2, 2, 0}, Version{0, 10, 0}},
		{Version{2, 2, 1}, Version{0, 11, 0}},
		{Version{2, 3, 0}, Version{0, 12, 0}},
		{Version{2, 4, 0}, Version{0, 12, 2}},
		{Version{2, 4, 2}, Version{0, 12, 3}},
	}
	crio = []shipped{
		{Version{1, 26, 0}, Version{0, 2, 0}},
		{Version{1, 26, 2}, Version{0, 3, 0}},
		{Version{1, 29, 0}, Version{0, 5, 0}},
		{Version{1, 29, 2}, Version{0, 6, 0}},
		{Version{1, 32, 0}, Version{0, 9, 0}},
		{Version{1, 34, 0}, Version{0, 10, 0}},
		{Version{1, 35, 0}, Version{0, 11, 0}},
		{Version{1, 37, 0}, Version{0, 12, 0}},
	}
)

// RuntimeNRIVersion returns the version of NRI in a runtime: the reported one, or else the one that this release of containerd or CRI-O is
// known to contain, or else the zero value.
func RuntimeNRIVersion(reported, runtime, runtimeVersion string) Version {
	// NRI says "0.0.0-unknown" or "(devel)" when it could not find out its own version.
	if version := ParseVersion(reported); version.Known() {
		return version
	}
	var table []shipped
	switch strings.ToLower(runtime) {
	case "containerd":
		table = containerd
	case "cri-o", "crio":
		table = crio
	}
	release, nri := ParseVersion(runtimeVersion), Version{}
	for _, s := range table {
		if release.AtLeast(s.from.Major, s.from.Minor, s.from.Patch) {
			nri = s.nri
		}
	}
	return nri
}
