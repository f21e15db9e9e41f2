// Command topology-aware-scheduler is kube-scheduler with the plugin
// NodeResourceTopologyMatch of sigs.k8s.io/scheduler-plugins, as its project builds it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesourcetopology"

	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // the plugin's arguments
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(noderesourcetopology.Name, noderesourcetopology.New))))
}
