package config

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// The options of topologyManagerPolicyOptions. The second bounds the kubelet's search; ours needs no bound.
const (
	preferClosest      = "prefer-closest-numa-nodes"
	maxAllowableNodes  = "max-allowable-numa-nodes"
	allocationStrategy = "numa-allocation-strategy"
	scoreWeights       = "numa-score-weights"
)

// policyOptions are all of them.
var policyOptions = []string{preferClosest, maxAllowableNodes, allocationStrategy, scoreWeights}

// mostRequestTimeout leaves the rest of an NRI request, which ends after two seconds, to everything else.
const mostRequestTimeout = Duration(1500 * time.Millisecond)

// leastRecording has room for the state of a thousand containers, with which each of its files begins.
const leastRecording = quantity.Bytes(8 << 20)

// validate checks what can be judged without a machine, in the order of the keys.
func (c Config) validate() error {
	return strictyaml.Join(
		oneOf(c, "memoryManagerPolicy", c.MemoryManagerPolicy),
		oneOf(c, "topologyManagerPolicy", c.TopologyManagerPolicy),
		oneOf(c, "topologyManagerScope", c.TopologyManagerScope),
		c.validatePolicyOptions(),
		oneOf(c, "numaAllocationStrategy", c.NUMAAllocationStrategy),
		oneOf(c, "onUnsatisfiable", c.OnUnsatisfiable),
		oneOf(c, "onGroupConflict", c.OnGroupConflict),
		oneOf(c, "onForeignCPUs", c.OnForeignCPUs),
		oneOf(c, "unpinnedMemoryPolicy", c.UnpinnedMemoryPolicy),
		oneOf(c, "coverDeficits", c.CoverDeficits),
		oneOf(c, "nodesWithoutCPUs", c.NodesWithoutCPUs),
		c.validateReservations(),
		c.validateFactor("memoryThrottlingFactor", c.MemoryThrottlingFactor),
		oneOf(c, "memoryReservationPolicy", c.MemoryReservationPolicy),
		c.check("guaranteedHeadroom", c.GuaranteedHeadroom >= 0 && c.GuaranteedHeadroom < 1, "want 0 or more and less than 1, got %v", c.GuaranteedHeadroom),
		c.validateSources(),
		c.validateNodeName(),
		c.between("requestTimeout", c.RequestTimeout, 0, mostRequestTimeout),
		c.validateAnnotationKeys("allowedAnnotations", c.AllowedAnnotations),
		c.validateMinimum("minimumThrottlingFactor", c.MinimumThrottlingFactor),
		c.validateRules(),
		oneOf(c, "onBadAnnotation", c.OnBadAnnotation),
		oneOf(c, "onTermination", c.OnTermination),
		c.between("reconcilePeriod", c.ReconcilePeriod, Duration(time.Second), Duration(time.Hour)),
		c.check("recordingSize", c.RecordingSize >= leastRecording, "want %s or more, got %s", leastRecording, c.RecordingSize),
		c.validateStallGuard(),
		c.between("nodeResourceTopology.interval", c.NodeResourceTopology.Interval, Duration(time.Second), Duration(time.Hour)),
		c.validateDRA(),
		oneOf(c, "log.format", c.Log.Format),
		oneOf(c, "log.level", c.Log.Level),
	)
}

func (c Config) check(path string, ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return c.Errorf(path, format, args...)
}

// oneOf checks a value against the names that its key may hold.
func oneOf[T ~string](c Config, path string, value T) error {
	names := choices[anyIndex.ReplaceAllString(path, "[]")]
	if slices.Contains(names, string(value)) {
		return nil
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	return c.Errorf(path, "want %s, got %s%s", spelling.List(names), strictyaml.Quote(string(value)), spelling.Hint(string(value), names))
}

func (c Config) between(path string, d, low, high Duration) error {
	return c.check(path, d >= low && d <= high, "want %s to %s, got %s", low, high, d)
}

func (c Config) validateFactor(path string, factor *float64) error {
	if factor == nil {
		return nil
	}
	return c.check(path, *factor > 0 && *factor <= 1, "want more than 0 and at most 1, or null for no memory.high, got %v", *factor)
}

func (c Config) validateMinimum(path string, factor float64) error {
	return c.check(path, factor >= 0 && factor <= 1, "want 0 to 1, got %v", factor)
}

func (c Config) validatePolicyOptions() error {
	var errs []error
	for _, option := range slices.Sorted(maps.Keys(c.TopologyManagerPolicyOptions)) {
		text, err := c.TopologyManagerPolicyOptions[option], error(nil)
		field := "topologyManagerPolicyOptions." + option
		switch option {
		case preferClosest:
			_, err = strconv.ParseBool(text)
			err = c.check(field, err == nil, "want true or false, got %s", strictyaml.Quote(text))
		case maxAllowableNodes:
			_, err = strconv.ParseUint(text, 10, 16)
			err = c.check(field, err == nil, "want a number of nodes, got %s", strictyaml.Quote(text))
		case allocationStrategy:
			if text != "" { // which is none
				known := slices.Contains(topologymanager.KubeletStrategies(), topologymanager.Strategy(text))
				err = c.check(field, known, "want none, most-allocated or least-allocated, got %s", strictyaml.Quote(text))
			}
		case scoreWeights:
			if _, err = parseWeights(text); err != nil {
				err = c.Errorf(field, "%v", err)
			}
		default:
			err = c.Errorf("topologyManagerPolicyOptions", "unknown option %s%s", strictyaml.Quote(option),
				spelling.HintOr(option, policyOptions))
		}
		errs = append(errs, err)
	}
	return strictyaml.Join(errs...)
}

func (c Config) validateSources() error {
	var errs []error
	for i, source := range c.RequestSources {
		field := fmt.Sprintf("requestSources[%d]", i)
		err := oneOf(c, field, source)
		if err == nil && slices.Index(c.RequestSources, source) < i {
			err = c.Errorf(field, "%s is there twice", source)
		}
		errs = append(errs, err)
	}
	return strictyaml.Join(errs...)
}

// validateNodeName refuses what the API server has no node of.
func (c Config) validateNodeName() error {
	if c.NodeName == "" {
		return nil
	}
	problems := content.IsDNS1123Subdomain(c.NodeName)
	return c.check("nodeName", len(problems) == 0, "%s is not the name of a node: %s", strictyaml.Quote(c.NodeName), strings.Join(problems, ", "))
}

func (c Config) validateAnnotationKeys(path string, keys []Annotation) error {
	var errs []error
	for i, key := range keys {
		errs = append(errs, oneOf(c, fmt.Sprintf("%s[%d]", path, i), key))
	}
	return strictyaml.Join(errs...)
}

func (c Config) validateRules() error {
	var errs []error
	for i, rule := range c.AnnotationRules {
		field := fmt.Sprintf("annotationRules[%d]", i)
		if len(rule.Namespaces) == 0 {
			errs = append(errs, c.Errorf(field, "namespaces is missing: want names or patterns such as team-*"))
		}
		for j, pattern := range rule.Namespaces {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				errs = append(errs, c.Errorf(fmt.Sprintf("%s.namespaces[%d]", field, j), "want a name or a pattern such as team-*, got %s", strictyaml.Quote(pattern)))
			}
		}
		errs = append(errs, c.validateAnnotationKeys(field+".allowedAnnotations", rule.AllowedAnnotations))
		if rule.MinimumThrottlingFactor != nil {
			errs = append(errs, c.validateMinimum(field+".minimumThrottlingFactor", *rule.MinimumThrottlingFactor))
		}
	}
	return strictyaml.Join(errs...)
}

// validateStallGuard keeps to what the kernel's pressure triggers take (Documentation/accounting/psi.rst).
func (c Config) validateStallGuard() error {
	g := c.StallGuard
	return strictyaml.Join(
		c.between("stallGuard.window", g.Window, Duration(500*time.Millisecond), Duration(10*time.Second)),
		c.between("stallGuard.stall", g.Stall, Duration(time.Millisecond), g.Window),
		c.check("stallGuard.step", g.Step > 0 && g.Step <= 1, "want more than 0 and at most 1, got %v", g.Step),
		c.between("stallGuard.restoreAfter", g.RestoreAfter, Duration(time.Second), Duration(24*time.Hour)),
	)
}
