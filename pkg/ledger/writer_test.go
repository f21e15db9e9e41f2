package ledger

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

// TestAPlacementHasOneWriter finds the functions that write the Placement of a container, or Released, which belongs to it. A Placement
// that is no container's yet may be written: that is how one is decided.
func TestAPlacementHasOneWriter(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set, info := token.NewFileSet(), &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	checker := types.Config{Importer: noImports{}, Error: func(error) {}} // the types of other packages do not matter
	_, _ = checker.Check("ledger", set, files, info)
	var writers []string
	for _, file := range files {
		for _, declared := range file.Decls {
			if f, ok := declared.(*ast.FuncDecl); ok && writesPlacement(f, info) {
				writers = append(writers, set.Position(f.Pos()).Filename+": "+f.Name.Name)
			}
		}
	}
	if diff := cmp.Diff([]string{"place.go: assign"}, writers); diff != "" {
		t.Errorf("functions that write where a container has its memory (-want +got):\n%s", diff)
	}
}

func writesPlacement(f *ast.FuncDecl, info *types.Info) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			found = found || slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool { return ofPlacement(e, info) })
		case *ast.IncDecStmt:
			found = found || ofPlacement(n.X, info)
		case *ast.UnaryExpr: // its address is enough
			field, ok := n.X.(*ast.SelectorExpr)
			found = found || ok && n.Op == token.AND && ofPlacement(field, info) && !ofPlacement(field.X, info)
		}
		return !found
	})
	return found
}

// ofPlacement reports whether an expression is a container's placement, a part of it, or all that the container is.
func ofPlacement(e ast.Expr, info *types.Info) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.StarExpr: // *c.Slot
		return isContainer(info.TypeOf(e.X))
	case *ast.IndexExpr:
		return ofPlacement(e.X, info)
	case *ast.SelectorExpr:
		field := info.Selections[e]
		if field == nil {
			return false
		}
		if e.Sel.Name == "Released" && field.Kind() == types.FieldVal {
			return true
		}
		if !isContainer(field.Recv()) {
			return ofPlacement(e.X, info)
		}
		at := field.Recv()
		for _, i := range field.Index() { // the way to the field leads through the fields in which it is embedded
			if p, ok := at.Underlying().(*types.Pointer); ok {
				at = p.Elem()
			}
			var of *types.Struct
			if of, _ = at.Underlying().(*types.Struct); of == nil {
				return false
			}
			if of.Field(i).Name() == "Placement" {
				return true
			}
			at = of.Field(i).Type()
		}
	}
	return false
}

func isContainer(t types.Type) bool {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := t.(*types.Named)
	return ok && (named.Obj().Name() == "container" || named.Obj().Name() == "Slot")
}
