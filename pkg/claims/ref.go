package claims

import (
	"slices"
	"strconv"
	"strings"
)

// Ref is a part of a resource claim, as a container names it: by a CDI device, or by the environment variable of that
// device where the runtime shows no devices.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
type Ref struct {
	// UID is the claim's.
	UID string
	// Part is the index in Claim.Parts.
	Part int
}

// Class is the class in the names of CDI devices: <driver>/numa-memory=<UID>-<part>.
const Class = "numa-memory"

// variablePrefix begins the names of the environment variables.
const variablePrefix = "NUMA_MEMORY_CLAIM_"

// longestUID bounds what becomes part of a file's name.
const longestUID = 63

// MostRefs bounds the parts of claims that a container may name: a tenant writes its environment, and each part is looked at
// under the lock. A claim has a part for each NUMA node.
const MostRefs = 64

// ValidUID reports whether a UID can be part of the names of devices, variables and files.
func ValidUID(uid string) bool {
	return uid != "" && len(uid) <= longestUID && !strings.ContainsFunc(uid, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// device is the name of the CDI device within its class.
func (r Ref) device() string { return r.UID + "-" + strconv.Itoa(r.Part) }

// CDI is the full name of the CDI device of a driver.
func (r Ref) CDI(driver string) string { return driver + "/" + Class + "=" + r.device() }

// variable is the name of the device's environment variable.
func (r Ref) variable() string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(r.device(), "-", "_"))
}

// Refs are the parts of claims that a container names, by its CDI devices, else by its environment. It stops at the first one
// beyond MostRefs, which says that there are more than a container may name.
func Refs(devices, environment []string) []Ref {
	refs := refsIn(devices, func(device string) (string, bool) {
		kind, name, _ := strings.Cut(device, "=")
		return name, strings.HasSuffix(kind, "/"+Class)
	})
	if len(refs) > 0 {
		return refs
	}
	return refsIn(environment, func(variable string) (string, bool) {
		name, ours := strings.CutPrefix(variable, variablePrefix)
		if !ours {
			return "", false
		}
		name, _, _ = strings.Cut(name[:min(len(name), longestRef+1)], "=")
		return strings.ToLower(strings.ReplaceAll(name, "_", "-")), true
	})
}

// longestRef is the longest name of a part within its class.
const longestRef = longestUID + len("-65535")

func refsIn(names []string, device func(string) (string, bool)) (refs []Ref) {
	for _, name := range names {
		name, ours := device(name)
		at := strings.LastIndexByte(name, '-')
		if !ours || at < 0 || len(name) > longestRef {
			continue
		}
		part, err := strconv.ParseUint(name[at+1:], 10, 16)
		ref := Ref{UID: name[:at], Part: int(part)}
		if err != nil || !ValidUID(ref.UID) || slices.Contains(refs, ref) {
			continue
		}
		ref.UID = strings.Clone(ref.UID) // a longer name is not kept whole
		if refs = append(refs, ref); len(refs) > MostRefs {
			break
		}
	}
	return refs
}
