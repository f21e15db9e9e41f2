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

	"github.com/nri-memory-manager/nri-memory-manager/pkg/admin"
)

// adminSocket is the daemon's socket in its state folder, for the commands.
const adminSocket = "admin.sock"

// askTimeout bounds a question to the daemon.
const askTimeout = 10 * time.Second

// refusal is a daemon's answer that there is nothing to be had.
type refusal string

func (r refusal) Error() string { return string(r) }

// errNoDaemon is the error where nobody answers on the socket.
var errNoDaemon = errors.New("no daemon answers")

// ask puts a question to the daemon that owns a state folder, and decodes its answer.
func ask(ctx context.Context, stateDir, path string, query url.Values, answer any) error {
	return call(ctx, http.MethodGet, stateDir, path+"?"+query.Encode(), answer)
}

// order has the daemon that owns a state folder do something, and decodes its answer.
func order(ctx context.Context, stateDir, path string, answer any) error {
	return call(ctx, http.MethodPost, stateDir, path, answer)
}

func call(ctx context.Context, method, stateDir, path string, answer any) error {
	socket := filepath.Join(stateDir, adminSocket)
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, nil)
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	request.Header.Set(admin.Deadline, deadline.Format(time.RFC3339Nano))
	response, err := client.Do(request)
	if err != nil {
		if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
			return fmt.Errorf("%w on %s; is it running, with this --state-dir? %w", errNoDaemon, socket, dial)
		}
		return fmt.Errorf("the daemon on %s has not answered within %s; does it hang? %w", socket, askTimeout, err)
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
