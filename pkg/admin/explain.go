package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// explainWait is how long an explanation waits for those before it: the answer is to be sent within requestTimeout.
const explainWait = 5 * time.Second

// explainer answers /explain one request at a time: an explanation takes longer than all else that is served, and clients that ask
// for many must not keep the processors from the runtime's events.
type explainer struct {
	explain func(pod, container string) (any, error)
	turn    chan struct{} // full while there is an explanation under way
}

func newExplainer(explain func(pod, container string) (any, error)) *explainer {
	return &explainer{explain, make(chan struct{}, 1)}
}

func (e *explainer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	pod := query.Get("pod")
	if pod == "" {
		http.Error(w, "explain what? The query needs pod=NAMESPACE/NAME or pod=UID", http.StatusBadRequest)
		return
	}
	body, code, err := e.inTurn(r.Context(), pod, query.Get("container"))
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	write(w, body, nil)
}

// inTurn waits for its turn, which ends before the answer is sent: a client that does not read keeps nobody waiting. The code is for
// the error.
func (e *explainer) inTurn(ctx context.Context, pod, container string) (body []byte, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, explainWait)
	defer cancel()
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		err := fmt.Errorf("pods are explained one at a time, and others were before this one for %s: ask again", explainWait)
		return nil, http.StatusServiceUnavailable, err
	}
	answer, err := e.explain(pod, container)
	if err != nil {
		return nil, http.StatusNotFound, err
	}
	body, err = encode(answer)
	return body, http.StatusInternalServerError, err
}
