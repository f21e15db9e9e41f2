package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// carried is what the agent may name of the rooms that have rules: types that it carries from one place to another. No other of them may be
// imported. What is decided by them is the ledger's.
var carried = map[string][]string{
	"claims":          {"Claim"},                        // from the driver of claims to the ledger
	"config":          {"Config", "Resolved", "Ignore"}, // from the file to the ledger; Ignore says how long an answer waits
	"deficit":         {"NodeMemory"},                   // from the sampler to the ledger
	"memorymanager":   {"RestoreReport"},                // from the state file to the log
	"memoryqos":       nil,
	"nodeset":         nil,
	"pods":            {"Ref", "Answer"}, // from the pod APIs to the ledger
	"topologymanager": {"Device"},        // from the finder of devices to the ledger
}

// conditions are names that no condition may have: of QoS classes, of policies, and of amounts. Whether there is a value may be asked.
var conditions = []string{
	"Class", "Guaranteed", "Burstable", "BestEffort", "MemoryManagerPolicy", "TopologyManagerPolicy", "TopologyManagerScope", "Policy", "Scope", "Strategy",
	"Bytes", "Limit", "MemoryLimit", "Max", "Min", "Low", "High", "Blocks", "Request", "Hugepages", "PendingResize", "Phase",
}

// TestTheAgentKnowsNoRule reads the agent's source.
func TestTheAgentKnowsNoRule(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		rooms := map[string]bool{}
		for _, spec := range file.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			room := path[strings.LastIndex(path, "/")+1:]
			if _, ruled := carried[room]; ruled && strings.Contains(path, "nri-memory-manager/pkg/") {
				rooms[room] = true
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok && rooms[of.Name] && of.Obj == nil && !slices.Contains(carried[of.Name], n.Sel.Name) {
					t.Errorf("%s: %s.%s is not carried: the ledger decides by it", files.Position(n.Pos()), of.Name, n.Sel.Name)
				}
			case *ast.IfStmt:
				refuse(t, files, n.Cond)
			case *ast.ForStmt:
				refuse(t, files, n.Cond)
			case *ast.SwitchStmt:
				refuse(t, files, n.Tag)
			case *ast.CaseClause:
				for _, expression := range n.List {
					refuse(t, files, expression)
				}
			case *ast.BinaryExpr:
				if n.Op == token.LAND || n.Op == token.LOR {
					refuse(t, files, n)
				}
			}
			return true
		})
	}
}

// refuse reports what a condition goes by that is no business of the agent's.
func refuse(t *testing.T, files *token.FileSet, condition ast.Expr) {
	if condition == nil {
		return
	}
	ast.Inspect(condition, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr: // whether it is there
			if y, ok := n.Y.(*ast.Ident); ok && y.Name == "nil" {
				return false
			}
		case *ast.SelectorExpr:
			if slices.Contains(conditions, n.Sel.Name) {
				t.Errorf("%s: a condition goes by %s: that is a rule, and the ledger's", files.Position(n.Pos()), n.Sel.Name)
			}
		}
		return true
	})
}
