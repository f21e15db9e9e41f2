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
	switch text := strings.TrimSpace(string(body)); response.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return errors.New(text)
	default:
		return refusal(text)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("the daemon's answer is not this version's: %w", err)
	}
	return nil
}
