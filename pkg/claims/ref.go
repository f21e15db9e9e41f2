package claims

import (
	"slices"
	"strconv"
	"strings"
)

// Ref is a part of a resource claim as a container names it: by a CDI device, or by that device's environment variable if the runtime does
// not show CDI devices.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
type Ref struct {
	// UID is the claim's.
	UID string
	// Part is the index in Claim.Parts.
	Part int
}

// Class is the class in the names of CDI devices: <driver>/numa-memory=<UID>-<part>.
const Class = "numa-memory"

// variablePrefix is the prefix of the environment variables' names.
const variablePrefix = "NUMA_MEMORY_CLAIM_"

// maxUIDLength bounds UIDs in bytes, which become part of file names.
const maxUIDLength = 63

// MaxRefs bounds the parts of claims that a container may name. A tenant writes its environment, and each part is looked up under the lock.
// A claim has a part for each NUMA node.
const MaxRefs = 64

// ValidUID reports whether a UID can be part of the names of devices, variables and files.
func ValidUID(uid string) bool {
	return uid != "" && len(uid) <= maxUIDLength && !strings.ContainsFunc(uid, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// device returns the name of the CDI device within its class.
func (r Ref) device() string { return r.UID + "-" + strconv.Itoa(r.Part) }

// CDI returns the full name of the CDI device of a driver.
func (r Ref) CDI(driver string) string { return driver + "/" + Class + "=" + r.device() }

// variable returns the name of the device's environment variable.
func (r Ref) variable() string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(r.device(), "-", "_"))
}

// Refs returns the parts of claims that a container names, by its CDI devices or else by its environment. It stops after MaxRefs+1 parts,
// which are too many.
func Refs(devices, environment []string) []Ref {
	refs := refsIn(devices, func(device string) (string, bool) {
		kind, name, _ := strings.Cut(device, "=")
		return name, strings.HasSuffix(kind, "/"+Class)
	})
	if len(refs) > 0 {
		return refs
	}
	return refsIn(environment, func(variable string) (string, bool) {
		name, isClaim := strings.CutPrefix(variable, variablePrefix)
		if !isClaim {
			return "", false
		}
		name, _, _ = strings.Cut(name[:min(len(name), maxRefLength+1)], "=")
		return strings.ToLower(strings.ReplaceAll(name, "_", "-")), true
	})
}

// maxRefLength is the longest name of a part within its class, in bytes.
const maxRefLength = maxUIDLength + len("-65535")

func refsIn(names []string, device func(string) (string, bool)) (refs []Ref) {
	for _, name := range names {
		name, isClaim := device(name)
		at := strings.LastIndexByte(name, '-')
		if !isClaim || at < 0 || len(name) > maxRefLength {
			continue
		}
		part, err := strconv.ParseUint(name[at+1:], 10, 16)
		ref := Ref{UID: name[:at], Part: int(part)}
		if err != nil || !ValidUID(ref.UID) || slices.Contains(refs, ref) {
			continue
		}
		ref.UID = strings.Clone(ref.UID) // does not keep the longer string in memory
		if refs = append(refs, ref); len(refs) > MaxRefs {
			break
		}
	}
	return refs
}
