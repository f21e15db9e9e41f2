package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

func newStatusCommand() *cobra.Command {
	var (
		stateDir, format string
		only             status.Selection
		watch            bool
	)
	cmd := &cobra.Command{
		Use:   "status [[NAMESPACE/]POD]",
		Short: "Show this node's NUMA map, its containers and what protects and throttles them",
		Long: `Status asks the running daemon, over its socket in the state folder, and shows nodes with bars, pods and containers with
their NUMA nodes, memory.min, low and high, the memory request with its source and error bound, real use and throttling,
the cgroups above the pods, and what could not be placed.

With a pod, given by namespace and name, by its name alone, or by its UID, or with a namespace, it leaves out other pods. With
--problems it leaves out all that is as it should be: what stays are conditions that do not hold, overcommitted NUMA nodes,
cgroups above the pods that another writer has changed, pods with ignored annotations, and containers that were rejected, run
unpinned, are short of memory since a resize, are not moved, are stopped or raised by the stall guard, start without the memory policy
that they should have, or may use more than their claims have.

Exit status: 0 done, also with problems, 1 no daemon, no such pod or no pod in the namespace, 2 bad input.`,
		Example: `  nri-memory-manager status
  nri-memory-manager status shop/web
  nri-memory-manager status --namespace shop
  nri-memory-manager status --problems
  nri-memory-manager status --watch
  nri-memory-manager status -o wide
  nri-memory-manager status -o json | jq '.pods[].containers[] | select(.stopped)'`,
		Args:              commandline.Args(0, 1),
		ValidArgsFunction: completePod(&stateDir, podWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if only.Pod, err = commandline.Pod(args, only.Namespace); err != nil {
				return err
			}
			write := func(to io.Writer) error { return writeStatus(cmd.Context(), to, stateDir, format, only) }
			if watch {
				return watchStatus(cmd.Context(), cmd.OutOrStdout(), format, write)
			}
			return write(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	addDaemon(cmd, &stateDir, &only.Namespace, "the pod's namespace, or the only one to show")
	flags.BoolVar(&only.Problems, "problems", false, "show only what is not as it should be")
	commandline.AddOutput(cmd, &format, "table", "wide", "json", "yaml")
	flags.BoolVarP(&watch, "watch", "w", false, "show it again every two seconds")
	return cmd
}

func writeStatus(ctx context.Context, to io.Writer, stateDir, format string, only status.Selection) error {
	var document status.Document
	if err := ask(ctx, stateDir, "/status", nil, &document); err != nil {
		return commandline.Failed(err)
	}
	selected, err := document.Select(only)
	if err != nil {
		return commandline.Failed(err)
	}
	return commandline.Failed(commandline.Write(to, format, selected, func(to io.Writer) error { return selected.Table(to, format == "wide") }))
}

// watchStatus shows one picture after the other until the user has enough, in place of the last one where it is for people.
// Once it has shown one, it waits for a daemon that is away.
func watchStatus(ctx context.Context, to io.Writer, format string, write func(io.Writer) error) error {
	for shown := false; ; shown = true {
		var picture bytes.Buffer
		if format == "table" || format == "wide" {
			picture.WriteString("\x1b[H\x1b[2J") // clear the screen
		}
		switch err := write(&picture); {
		case ctx.Err() != nil:
			return nil
		case err != nil && !shown:
			return err
		case err != nil:
			fmt.Fprintf(&picture, "%s UTC  %v\n", time.Now().UTC().Format(time.DateTime), err)
		}
		if _, err := picture.WriteTo(to); err != nil { // at once, so that nothing flickers
			return commandline.Failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}
