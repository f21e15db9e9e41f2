package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// The options of topologyManagerPolicyOptions. The second bounds the kubelet's search; ours needs no bound.
const (
	preferClosest      = "prefer-closest-numa-nodes"
	maxAllowableNodes  = "max-allowable-numa-nodes"
	allocationStrategy = "numa-allocation-strategy"
	scoreWeights       = "numa-score-weights"
)

var policyOptions = []string{preferClosest, maxAllowableNodes, allocationStrategy, scoreWeights}

// validate checks what can be judged without a machine, in the order of the keys.
func (c Config) validate() error {
	return strictyaml.Join(
		oneOf(c, "apiVersion", c.APIVersion),
		oneOf(c, "kind", c.Kind),
		oneOf(c, "profile", c.Profile),
		oneOf(c, "memoryManagerPolicy", c.MemoryManagerPolicy),
		oneOf(c, "topologyManagerPolicy", c.TopologyManagerPolicy),
		oneOf(c, "topologyManagerScope", c.TopologyManagerScope),
		c.validatePolicyOptions(),
		oneOf(c, "onUnsatisfiable", c.OnUnsatisfiable),
		oneOf(c, "onConflict", c.OnConflict),
		oneOf(c, "unpinnedMemoryPolicy", c.UnpinnedMemoryPolicy),
		oneOf(c, "nodesWithoutCPUs", c.NodesWithoutCPUs),
		c.validateReservations(),
		c.inRange("memoryThrottlingFactor", c.MemoryThrottlingFactor),
		oneOf(c, "memoryReservationPolicy", c.MemoryReservationPolicy),
		c.inRange("guaranteedHeadroom", &c.GuaranteedHeadroom),
		c.inRange("cacheRoom", &c.CacheRoom),
		c.validateSources(),
		c.validateRules(),
		oneOf(c, "onBadAnnotation", c.OnBadAnnotation),
		oneOf(c, "failurePolicy", c.FailurePolicy),
		oneOf(c, "onTermination", c.OnTermination),
		c.validateDRA(),
		oneOf(c, "logLevel", c.LogLevel),
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
	return c.Errorf(path, "want %s, got %s%s", namesOf(names), strictyaml.Quote(string(value)), spelling.Hint(string(value), names))
}

// namesOf lists choices without the empty one.
func namesOf(names []string) string {
	return spelling.List(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" }))
}

// inRange checks a number against its key's range; nil is null.
func (c Config) inRange(path string, value *float64) error {
	if value == nil {
		return nil
	}
	r := ranges[anyIndex.ReplaceAllString(path, "[]")]
	return c.check(path, r.has(*value), "want %s, got %v", r.Want, *value)
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
			err = oneOf(c, field, text)
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

// objectName is what the API server admits as the name of a PriorityClass (RFC 1123's subdomain), but for its length.
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// namespacePattern and labelPattern are what the API server admits as the name of a namespace and the value of a label, but for their length, with * and
// ? for any characters.
var (
	namespacePattern = regexp.MustCompile(`^[a-z0-9*?]([-a-z0-9*?]*[a-z0-9*?])?$`)
	labelPattern     = regexp.MustCompile(`^[a-zA-Z0-9*?]([-a-zA-Z0-9_.*?]*[a-zA-Z0-9*?])?$`)
)

func (c Config) validateRules() error {
	var errs []error
	for i, rule := range c.AnnotationRules {
		field := fmt.Sprintf("annotationRules[%d]", i)
		if len(rule.Namespaces)+len(rule.Labels) == 0 {
			errs = append(errs, c.Errorf(field, "namespaces and labels are missing: want names or patterns such as team-*"))
		}
		for j, name := range rule.Namespaces {
			errs = append(errs, c.check(fmt.Sprintf("%s.namespaces[%d]", field, j), namespacePattern.MatchString(name),
				"want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got %s", strictyaml.Quote(name)))
		}
		for _, key := range slices.Sorted(maps.Keys(rule.Labels)) {
			errs = append(errs, c.check(field+".labels."+key, labelPattern.MatchString(rule.Labels[key]),
				"want a value or a pattern such as *, of letters, digits, -, _, . and the wildcards * and ?, got %s", strictyaml.Quote(rule.Labels[key])))
		}
		for _, key := range slices.Sorted(maps.Keys(rule.Defaults)) {
			errs = append(errs, c.validateDefault(field+".defaults", key, rule))
		}
		for _, class := range slices.Sorted(maps.Keys(rule.PriorityClasses)) {
			at := field + ".priorityClasses"
			if !objectName.MatchString(class) {
				errs = append(errs, c.Errorf(at, "want names of PriorityClasses such as team-db, got %s", strictyaml.Quote(class)))
			} else if _, ok := oomScoreAdj(rule.PriorityClasses[class]); !ok {
				errs = append(errs, c.Errorf(at+"."+class, "%s, got %s", wantOOMScoreAdj, strictyaml.Quote(rule.PriorityClasses[class])))
			}
		}
		for j, key := range rule.AllowedAnnotations {
			errs = append(errs, oneOf(c, fmt.Sprintf("%s.allowedAnnotations[%d]", field, j), key))
		}
		errs = append(errs, c.inRange(field+".minimumThrottlingFactor", &rule.MinimumThrottlingFactor))
	}
	return strictyaml.Join(errs...)
}

// validateDefault refuses what a pod's annotation could not say.
func (c Config) validateDefault(path string, name Annotation, rule AnnotationRule) error {
	if !slices.Contains(annotations(), name) {
		return c.Errorf(path, "unknown annotation %s%s", strictyaml.Quote(string(name)), spelling.HintOr(string(name), annotationNames))
	}
	rules := AnnotationRules{Allowed: annotations(), MinimumFactor: rule.MinimumThrottlingFactor, Rule: "the rule"}
	if err := rules.wish(&Wishes{}, nil, name, rule.Defaults[name]); err != nil {
		return c.Errorf(path+"."+string(name), "%s", err.ErrorBody())
	}
	return nil
}
