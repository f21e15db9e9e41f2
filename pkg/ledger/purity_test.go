package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nri-memory-manager/nri-memory-manager/pkg/"

// rooms are the packages that decide, and what they may import that others may not. No other package of the project may be among
// what the ledger depends on.
var rooms = map[string][]string{
	"cgroup":          nil,
	"claims":          nil,
	"config":          nil,
	"deficit":         nil,
	"ledger":          nil,
	"machine":         nil,
	"memorymanager":   nil,
	"memoryqos":       nil,
	"nodeset":         nil,
	"pods":            nil,
	"quantity":        nil,
	"spelling":        nil,
	"strictyaml":      {"io"}, // the end of a document is io.EOF
	"topologymanager": nil,
}

// effects are the packages of the standard library, with all below them, that the rooms do not import: they reach a disk, a log, a
// network, a lock or another goroutine.
var effects = []string{"context", "io", "log", "net", "os", "runtime", "sync", "syscall", "unsafe"}

// nowhere are packages that nothing may import which the ledger depends on. fmt itself imports os and sync.
var nowhere = []string{"log", "net", "os/exec", "os/signal", "os/user", "plugin"}

// libraries are the packages of others, all of them for texts and numbers.
var libraries = []string{
	"k8s.io/utils/cpuset", // lists of CPUs
	// Quantities, which also have a form in CBOR.
	"k8s.io/apimachinery/pkg/api/resource", "gopkg.in/inf.v0",
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct", "k8s.io/apimachinery/pkg/runtime/serializer/cbor/internal/modes",
	"github.com/fxamacker/cbor/v2", "github.com/x448/float16", "sigs.k8s.io/json", "sigs.k8s.io/json/internal/golang/encoding/json",
	// Configuration files, names in them, and errors about annotations.
	"go.yaml.in/yaml/v2", "go.yaml.in/yaml/v3", "sigs.k8s.io/yaml",
	"k8s.io/apimachinery/pkg/util/errors", "k8s.io/apimachinery/pkg/util/sets", "k8s.io/apimachinery/pkg/util/validation/field",
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath string
	Dir        string
	Standard   bool
	GoFiles    []string
	Imports    []string
}

// dependencies are the ledger and all that it depends on, by import path.
func dependencies(t *testing.T) map[string]listed {
	t.Helper()
	output, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,Imports", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]listed{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

// barred says why a package may not import another; "" if it may.
func barred(from, to listed) string {
	room, ours := strings.CutPrefix(from.ImportPath, module)
	name, imported := strings.CutPrefix(to.ImportPath, module)
	first, _, _ := strings.Cut(to.ImportPath, "/")
	switch _, pure := rooms[name]; {
	case imported && !pure:
		return "is not among the pure rooms"
	case imported:
	case !to.Standard && !slices.Contains(libraries, to.ImportPath):
		return "is not among the libraries"
	case slices.Contains(nowhere, to.ImportPath):
		return "has effects"
	case to.Standard && ours && slices.Contains(effects, first) && !slices.Contains(rooms[room], to.ImportPath):
		return "has effects"
	}
	return ""
}

// TestTheRoomsThatDecideArePure follows the imports from the ledger, nearest first, and names the shortest way to what must not be
// imported. What lies behind that is not followed.
func TestTheRoomsThatDecideArePure(t *testing.T) {
	all := dependencies(t)
	const start = module + "ledger"
	way := map[string]string{start: "ledger"}
	for queue := []string{start}; len(queue) > 0; queue = queue[1:] {
		from := all[queue[0]]
		for _, path := range from.Imports {
			to, ok := all[path]
			if !ok { // the standard library's copies of packages have other paths
				continue
			}
			chain := way[from.ImportPath] + " → " + strings.TrimPrefix(path, module)
			if why := barred(from, to); why != "" {
				t.Errorf("%s %s: %s", path, why, chain)
			} else if way[path] == "" {
				way[path] = chain
				queue = append(queue, path)
			}
		}
	}
	for name := range rooms {
		if way[module+name] == "" {
			t.Errorf("%s is listed, and the ledger does not depend on it", name)
		}
	}
	for _, path := range libraries {
		if way[path] == "" {
			t.Errorf("%s is listed, and the ledger does not depend on it", path)
		}
	}
}

// TestTheRoomsThatDecideHaveNoClock: they are told the time, and begin nothing that goes on without them.
func TestTheRoomsThatDecideHaveNoClock(t *testing.T) {
	all := dependencies(t)
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Sleep", "Tick"}
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		p := all[module+room]
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), p.Dir+"/"+name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s/%s starts a goroutine", room, name)
				case *ast.SelectorExpr:
					if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && slices.Contains(clock, n.Sel.Name) {
						t.Errorf("%s/%s uses time.%s", room, name, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}
