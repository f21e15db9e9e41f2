package world

import (
	"cmp"
	"path"
	"slices"
	"strconv"
)

const scored Promise = "a new container has the oom_score_adj that its pod may ask for, else the kubelet's"

// rule is one of annotationRules. The first that matches counts.
type rule struct {
	Namespaces      []string          `json:"namespaces"`
	Labels          map[string]string `json:"labels"`
	Allowed         []string          `json:"allowedAnnotations"`
	Defaults        map[string]string `json:"defaults"`
	PriorityClasses map[string]string `json:"priorityClasses"`
}

func (r rule) matches(p LivePod) bool {
	for key, pattern := range r.Labels {
		if value, has := p.Labels[key]; !has || !like(pattern, value) {
			return false
		}
	}
	return len(r.Namespaces) == 0 || slices.ContainsFunc(r.Namespaces, func(pattern string) bool { return like(pattern, p.Namespace) })
}

func like(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// wish is what an annotation of the daemon's says of a pod: its own where it may have it, else the rule's default; "" is neither.
func (s settings) wish(p LivePod, key string) string {
	own := p.Annotations[key+".memory-manager.noderesource.dev"]
	if _, err := strconv.ParseFloat(own, 64); key == "throttling-factor" && err != nil {
		own = ""
	}
	for _, r := range s.Rules {
		if r.matches(p) {
			if own != "" && slices.Contains(r.Allowed, key) {
				return own
			}
			return r.Defaults[key]
		}
	}
	if key == "oom-score-adj" {
		return "" // no pod may have it without a rule
	}
	return own
}

// oomScore is what a container is to be created with.
func (s settings) oomScore(p LivePod, kubelets int64) int64 {
	if !s.writes() {
		return kubelets
	}
	wish := s.wish(p, "oom-score-adj")
	for _, r := range s.Rules {
		if r.matches(p) {
			if own := p.Annotations["oom-score-adj.memory-manager.noderesource.dev"]; own == "" || !slices.Contains(r.Allowed, "oom-score-adj") {
				wish = cmp.Or(r.PriorityClasses[p.PriorityClass], wish)
			}
			break
		}
	}
	switch wish {
	case "":
		return kubelets
	case "first":
		return 1000
	case "last":
		return -997
	}
	score, err := strconv.ParseInt(wish, 10, 64)
	must(err)
	return score
}

// scores looks at each container once. One that was created while something kept the daemon from answering, or from knowing its pod, is left out.
func (n *simulation) scores() {
	s := n.settings()
	for p, c := range n.containers() {
		if n.scored[c.ID] || !n.seesPlaced(c.Since) || n.trouble.calm(scored, c.Since).After(c.Since) {
			continue
		}
		n.scored[c.ID] = true
		if want := s.oomScore(p, c.KubeletScore); c.Score != want {
			n.broken(scored, "%s/%s was created with %d, want %d (the kubelet's is %d)", p.Name, c.ID, c.Score, want, c.KubeletScore)
		}
		if c.Score != c.KubeletScore {
			n.report.Scored++
		}
	}
}
