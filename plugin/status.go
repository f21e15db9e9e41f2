package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/printer"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

func newStatusCommand() *cobra.Command {
	var (
		stateDir, format string
		watch            bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show this node's NUMA map, its containers and what protects and throttles them",
		Long: `Status asks the running daemon, over its socket in the state folder, and shows nodes with bars, pods and containers with
their NUMA nodes, memory.min, low and high, the memory request with its source and error bound, real use and throttling,
the cgroups above the pods, and what could not be placed.`,
		Example: `  nri-memory-manager status
  nri-memory-manager status --watch
  nri-memory-manager status -o wide
  nri-memory-manager status -o json | jq '.pods[].containers[] | select(.stopped)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := printer.Check(format, "table", "wide", "json", "yaml"); err != nil {
				return err
			}
			if watch {
				return watchStatus(cmd.Context(), cmd.OutOrStdout(), stateDir, format)
			}
			return writeStatus(cmd.Context(), cmd.OutOrStdout(), stateDir, format)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&stateDir, "state-dir", defaultStateDir, "state folder of the daemon")
	printer.AddFlag(cmd, &format, "table", "wide", "json", "yaml")
	flags.BoolVarP(&watch, "watch", "w", false, "show it again every two seconds")
	return cmd
}

func writeStatus(ctx context.Context, to io.Writer, stateDir, format string) error {
	var document status.Document
	if err := ask(ctx, stateDir, "/status", nil, &document); err != nil {
		return failed(err)
	}
	return failed(printer.Write(to, format, &document, func(to io.Writer) error { return document.Table(to, format == "wide") }))
}

// watchStatus shows one picture after the other until the user has enough, in place of the last one where it is for people.
// Once it has shown one, it waits for a daemon that is away.
func watchStatus(ctx context.Context, to io.Writer, stateDir, format string) error {
	for shown := false; ; shown = true {
		var picture bytes.Buffer
		if format == "table" || format == "wide" {
			picture.WriteString("\x1b[H\x1b[2J") // clear the screen
		}
		switch err := writeStatus(ctx, &picture, stateDir, format); {
		case ctx.Err() != nil:
			return nil
		case err != nil && !shown:
			return err
		case err != nil:
			fmt.Fprintf(&picture, "%s UTC  %v\n", time.Now().UTC().Format(time.DateTime), err)
		}
		if _, err := picture.WriteTo(to); err != nil { // at once, so that nothing flickers
			return failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}
