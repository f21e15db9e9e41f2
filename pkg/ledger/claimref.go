package ledger

import (
	"slices"
	"strconv"
	"strings"
)

// ClaimRef is a part of a resource claim, as a container names it: by a CDI device, or by the environment variable of that
// device where the runtime shows no devices.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
type ClaimRef struct {
	// UID is the claim's.
	UID string
	// Part is the index in Claim.Parts.
	Part int
}

// ClaimClass is the class in the names of CDI devices: <driver>/numa-memory=<UID>-<part>.
const ClaimClass = "numa-memory"

// claimVariable begins the names of the environment variables.
const claimVariable = "NUMA_MEMORY_CLAIM_"

// longestClaimUID bounds what becomes part of a file's name.
const longestClaimUID = 63

// MostClaimRefs bounds the parts of claims that a container may name: a tenant writes its environment, and each part is looked at
// under the lock. A claim has a part for each NUMA node.
const MostClaimRefs = 64

// ValidClaimUID reports whether a UID can be part of the names of devices, variables and files.
func ValidClaimUID(uid string) bool {
	return uid != "" && len(uid) <= longestClaimUID && !strings.ContainsFunc(uid, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// Device is the name of the CDI device within its class.
func (r ClaimRef) Device() string { return r.UID + "-" + strconv.Itoa(r.Part) }

// Variable is the name of the device's environment variable.
func (r ClaimRef) Variable() string {
	return claimVariable + strings.ToUpper(strings.ReplaceAll(r.Device(), "-", "_"))
}

// ClaimRefs are the parts of claims that a container names, by its CDI devices, else by its environment. It stops at the first one
// beyond MostClaimRefs, which says that there are more than a container may name.
func ClaimRefs(devices, environment []string) []ClaimRef {
	refs := refsIn(devices, func(device string) (string, bool) {
		kind, name, _ := strings.Cut(device, "=")
		return name, strings.HasSuffix(kind, "/"+ClaimClass)
	})
	if len(refs) > 0 {
		return refs
	}
	return refsIn(environment, func(variable string) (string, bool) {
		name, ours := strings.CutPrefix(variable, claimVariable)
		if !ours {
			return "", false
		}
		name, _, _ = strings.Cut(name[:min(len(name), longestRef+1)], "=")
		return strings.ToLower(strings.ReplaceAll(name, "_", "-")), true
	})
}

// longestRef is the longest name of a part within its class.
const longestRef = longestClaimUID + len("-65535")

func refsIn(names []string, device func(string) (string, bool)) (refs []ClaimRef) {
	for _, name := range names {
		name, ours := device(name)
		at := strings.LastIndexByte(name, '-')
		if !ours || at < 0 || len(name) > longestRef {
			continue
		}
		part, err := strconv.ParseUint(name[at+1:], 10, 16)
		ref := ClaimRef{UID: name[:at], Part: int(part)}
		if err != nil || !ValidClaimUID(ref.UID) || slices.Contains(refs, ref) {
			continue
		}
		ref.UID = strings.Clone(ref.UID) // a longer name is not kept whole
		if refs = append(refs, ref); len(refs) > MostClaimRefs {
			break
		}
	}
	return refs
}
