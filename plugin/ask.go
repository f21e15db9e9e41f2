package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// adminSocket is the daemon's socket in its state folder, for status, explain and verify.
const adminSocket = "admin.sock"

// askTimeout bounds a question to the daemon.
const askTimeout = 10 * time.Second

// refusal is a daemon's answer that there is nothing to be had.
type refusal string

func (r refusal) Error() string { return string(r) }

// ask puts a question to the daemon that owns a state folder, and decodes its answer.
func ask(ctx context.Context, stateDir, path string, query url.Values, answer any) error {
	socket := filepath.Join(stateDir, adminSocket)
	client := http.Client{Timeout: askTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		var dial *net.OpError
		if errors.As(err, &dial) {
			err = dial
		}
		return fmt.Errorf("no daemon answers on %s; is it running, with this --state-dir? %w", socket, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return refusal(strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("the daemon's answer is not this version's: %w", err)
	}
	return nil
}

// writeAs writes a document as JSON or YAML, or by the given function for people.
func writeAs(to io.Writer, format string, document any, people func(io.Writer) error) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(to)
		encoder.SetIndent("", "  ")
		return encoder.Encode(document)
	case "yaml":
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = to.Write(text)
		return err
	}
	return people(to)
}

// addFormat adds the flag --output with its completion; the first format is the default.
func addFormat(cmd *cobra.Command, format *string, known ...string) {
	last := len(known) - 1
	cmd.Flags().StringVarP(format, "output", "o", known[0], strings.Join(known[:last], ", ")+" or "+known[last])
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// checkFormat refuses an output format that is not one of those known.
func checkFormat(format string, known ...string) error {
	for _, k := range known {
		if format == k {
			return nil
		}
	}
	return fmt.Errorf("--output %q: want one of %s", format, strings.Join(known, ", "))
}
