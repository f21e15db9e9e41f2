package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// completionTimeout bounds what a shell waits for after the TAB key.
const completionTimeout = 2 * time.Second

// completeFrom completes words with what the running daemon knows. Without a daemon there are none, and never files.
func completeFrom(stateDir *string, words func(d *status.Document, begun string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		var document status.Document
		if err := ask(ctx, *stateDir, "/status", nil, &document); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var all []cobra.Completion
		for _, word := range words(&document, begun) {
			if strings.HasPrefix(word, begun) {
				all = append(all, word)
			}
		}
		slices.Sort(all)
		return slices.Compact(all), cobra.ShellCompDirectiveNoFileComp
	}
}

// completePod completes the only argument of a command that takes a pod.
func completePod(stateDir *string, words func(d *status.Document, begun string) []string) cobra.CompletionFunc {
	complete := completeFrom(stateDir, words)
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

// addDaemon adds the flags --state-dir, and --namespace, which completes with the namespaces of the pods.
func addDaemon(cmd *cobra.Command, stateDir, namespace *string, usage string) {
	cmd.Flags().StringVar(stateDir, "state-dir", defaultStateDir, "state folder of the daemon")
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", usage)
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeFrom(stateDir, namespaceWords)) // the flag is there
}

// podWords are NAMESPACE/NAME of all pods, and their names alone where one is begun.
func podWords(d *status.Document, begun string) (words []string) {
	for _, p := range d.Pods {
		words = append(words, p.Namespace+"/"+p.Name)
		if begun != "" {
			words = append(words, p.Name)
		}
	}
	return words
}

// containerWords are podWords, and NAMESPACE/NAME/CONTAINER of a pod that is there in full.
func containerWords(d *status.Document, begun string) []string {
	words := podWords(d, begun)
	for _, p := range d.Pods {
		pod := p.Namespace + "/" + p.Name + "/"
		if !strings.HasPrefix(begun, pod) {
			continue
		}
		for _, c := range p.Containers {
			words = append(words, pod+c.Name)
		}
	}
	return words
}

func namespaceWords(d *status.Document, _ string) (words []string) {
	for _, p := range d.Pods {
		words = append(words, p.Namespace)
	}
	return words
}
