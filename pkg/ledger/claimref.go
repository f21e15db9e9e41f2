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

// ClaimRefs are the parts of claims that a container names, by its CDI devices, else by its environment.
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
		name, _, _ = strings.Cut(name, "=")
		return strings.ToLower(strings.ReplaceAll(name, "_", "-")), ours
	})
}

func refsIn(names []string, device func(string) (string, bool)) (refs []ClaimRef) {
	for _, name := range names {
		name, ours := device(name)
		at := strings.LastIndexByte(name, '-')
		if !ours || at < 0 {
			continue
		}
		part, err := strconv.ParseUint(name[at+1:], 10, 16)
		ref := ClaimRef{UID: name[:at], Part: int(part)}
		if err == nil && ValidClaimUID(ref.UID) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}
