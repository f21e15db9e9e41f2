package kubectl

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// parallel is how many daemons are asked at once.
const parallel = 16

// each asks about every node, in the order of their names; err says why there is no daemon to ask.
func each[T any](ctx context.Context, c *cluster, ask func(ctx context.Context, node string, d *daemon, err error) T) ([]T, error) {
	nodes, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	installed, pods, err := c.installed(ctx, "")
	if err != nil {
		return nil, err
	}
	byNode := map[string][]corev1.Pod{}
	for _, pod := range pods {
		byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
	}
	slices.Sort(nodes)
	answers := make([]T, len(nodes))
	free := make(chan struct{}, parallel)
	var group sync.WaitGroup
	for i, node := range nodes {
		free <- struct{}{}
		group.Go(func() {
			d, err := installed.choose(node, byNode[node])
			answers[i] = ask(ctx, node, d, err)
			<-free
		})
	}
	group.Wait()
	return answers, ctx.Err()
}
