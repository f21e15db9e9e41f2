package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

func newExplainCommand() *cobra.Command {
	var stateDir, stateFile, configPath, namespace, container, format string
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]POD[/CONTAINER]",
		Short: "Say why a pod's containers are where they are, or why not, and how their values come about",
		Long: `Explain asks the running daemon why each container of a pod has its NUMA nodes (the sets of nodes that were considered, and
why each was not taken) or was rejected, and shows the arithmetic of memory.min, memory.low and memory.high. A pod is named
by namespace and name, by its name alone, or by its UID. "pod/" before it is left out: -n names a namespace called pod.

With --state-file no daemon is asked: the file, the plugin's or a kubelet's, says what is allocated, of pods by their UID, and
the Topology Manager's policy is the configuration's.

Exit status: 0 done, 1 no daemon or no such pod, 2 bad input.`,
		Example: `  nri-memory-manager explain default/database
  nri-memory-manager explain default/database/postgres
  nri-memory-manager explain 5f2c1f0e-8d0e-4f5c-9d3e-2b1c3f6a7b8c -o json
  nri-memory-manager explain 5f2c1f0e-8d0e-4f5c-9d3e-2b1c3f6a7b8c --state-file /var/lib/kubelet/memory_manager_state`,
		Args:              commandline.Args(1, 1),
		ValidArgsFunction: completePod(&stateDir, containerWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			var documents []status.Explanation
			var err error
			switch {
			case stateFile == "" && configPath != "":
				return errors.New("--config is for --state-file: the daemon has its own")
			case stateFile != "" && namespace != "":
				return errors.New("--namespace: a state file names pods by their UID; leave it out")
			case stateFile != "":
				documents, err = explainFile(stateFile, configPath, strings.TrimSuffix(args[0]+"/"+container, "/"))
			default:
				documents, err = explainLive(cmd.Context(), stateDir, args[0], namespace, container)
			}
			if err != nil {
				return err
			}
			return commandline.Failed(commandline.Write(cmd.OutOrStdout(), format, documents, func(to io.Writer) error { return status.WriteExplanations(to, documents) }))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&stateFile, "state-file", "", "state file to explain in place of asking the daemon")
	flags.StringVar(&configPath, "config", "", "configuration file with the Topology Manager's policy, for --state-file")
	flags.StringVarP(&container, "container", "c", "", "the only container to explain")
	addDaemon(cmd, &stateDir, &namespace, "the pod's namespace")
	commandline.AddOutput(cmd, &format, "text", "json", "yaml")
	return cmd
}

// explainLive asks the daemon for what an argument can mean, one after the other.
func explainLive(ctx context.Context, stateDir, argument, namespace, container string) (documents []status.Explanation, err error) {
	meant, err := commandline.PodOrContainer(argument, namespace, container)
	if err != nil {
		return nil, err
	}
	var none []string
	for _, one := range meant {
		if err = ask(ctx, stateDir, "/explain", url.Values{"pod": {one.Pod}, "container": {one.Container}}, &documents); err == nil {
			return documents, nil
		}
		no, ok := errors.AsType[refusal](err)
		if !ok {
			return nil, commandline.Failed(err)
		}
		none = append(none, no.Error())
	}
	return nil, commandline.Failed(fmt.Errorf("%s; nri-memory-manager status lists them", strings.Join(none, ", and ")))
}

// explainFile explains "UID" or "UID/CONTAINER" from a state file.
func explainFile(path, configPath, argument string) ([]status.Explanation, error) {
	file, err := checkpoint.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := loadConfig(configPath)
	if err != nil {
		return nil, err
	}
	uid, container, _ := strings.Cut(strings.TrimPrefix(argument, "pod/"), "/")
	documents, err := status.ExplainState(file.State, memorymanager.Options{Policy: c.TopologyManagerPolicy, Scope: c.TopologyManagerScope}, uid, container)
	if err != nil {
		return nil, commandline.Failed(fmt.Errorf("%s: %w", path, err))
	}
	return documents, nil
}
