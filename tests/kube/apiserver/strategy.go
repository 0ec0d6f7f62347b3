package main

import (
	"context"
	"reflect"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// strategy tells the generic registry how to create, update and delete objects of a type.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	resource
	ofStatus bool // for the subresource
}

func (s strategy) NamespaceScoped() bool          { return !s.clusterWide }
func (s strategy) AllowCreateOnUpdate() bool      { return s.createOnUpdate && !s.ofStatus }
func (s strategy) AllowUnconditionalUpdate() bool { return !s.needsVersion }
func (s strategy) Canonicalize(runtime.Object)    {}

func (s strategy) PrepareForCreate(_ context.Context, object runtime.Object) {
	if s.generation {
		accessor(object).SetGeneration(1)
	}
	// A node's status is taken as the kubelet sends it (registry/core/node/strategy.go).
	if _, isNode := object.(*core.Node); s.status && !isNode {
		part(object, "Status").SetZero()
	}
	switch o := object.(type) {
	case *core.Pod:
		o.Status.Phase = core.PodPending
		if asksForNothing(o) {
			o.Status.QOSClass = core.PodQOSBestEffort
		}
	case *core.Namespace:
		o.Status.Phase = core.NamespaceActive
	case *core.PersistentVolumeClaim:
		o.Status.Phase = core.ClaimPending
	}
}

func (s strategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	m, before := accessor(object), accessor(old)
	if s.ofStatus {
		// Labels and annotations may change with the status of built-in types; a pod's owners may not.
		part(object, "Spec").Set(part(old, "Spec"))
		if _, isPod := object.(*core.Pod); isPod {
			m.SetOwnerReferences(before.GetOwnerReferences())
		}
		m.SetGeneration(before.GetGeneration())
		return
	}
	if s.status {
		part(object, "Status").Set(part(old, "Status"))
	}
	m.SetGeneration(before.GetGeneration())
	if s.generation && part(object, "Spec").IsValid() &&
		!equality.Semantic.DeepEqual(part(object, "Spec").Interface(), part(old, "Spec").Interface()) {
		m.SetGeneration(before.GetGeneration() + 1)
	}
}

func (s strategy) Validate(_ context.Context, object runtime.Object) field.ErrorList {
	return validation.ValidateObjectMetaAccessor(
		accessor(object), s.NamespaceScoped(), s.validName, field.NewPath("metadata"))
}

func (s strategy) ValidateUpdate(_ context.Context, object, old runtime.Object) field.ErrorList {
	return validation.ValidateObjectMetaAccessorUpdate(accessor(object), accessor(old), field.NewPath("metadata"))
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// DefaultGarbageCollectionPolicy follows registry/batch/job/strategy.go.
func (s strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.orphansByDefault {
		return rest.OrphanDependents
	}
	return rest.DeleteDependents
}

// gracefulPods adds what registry/core/pod/strategy.go says of a pod's grace period.
type gracefulPods struct{ strategy }

func (gracefulPods) CheckGracefulDelete(_ context.Context, object runtime.Object, o *metav1.DeleteOptions) bool {
	if o == nil {
		return false
	}
	pod := object.(*core.Pod)
	seconds := int64(core.DefaultTerminationGracePeriodSeconds)
	if o.GracePeriodSeconds != nil {
		seconds = *o.GracePeriodSeconds
	} else if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	ended := pod.Status.Phase == core.PodFailed || pod.Status.Phase == core.PodSucceeded
	if pod.Spec.NodeName == "" || ended {
		seconds = 0
	}
	if seconds < 0 {
		seconds = 1
	}
	o.GracePeriodSeconds = &seconds
	return true
}

// deletionOf returns the strategy in the form that says which kind of deletion the type has.
func deletionOf(s strategy) rest.RESTDeleteStrategy {
	switch s.object.(type) {
	case *core.Pod:
		return gracefulPods{s}
	case *batch.Job:
		return s
	}
	return plainDeletion{s}
}

// plainDeletion hides DefaultGarbageCollectionPolicy: the registry then chooses by itself.
type plainDeletion struct{ runtime.ObjectTyper }

func asksForNothing(pod *core.Pod) bool {
	for _, c := range append(append([]core.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
		if len(c.Resources.Requests)+len(c.Resources.Limits) > 0 {
			return false
		}
	}
	return true
}

func accessor(object runtime.Object) metav1.Object {
	m, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	return m
}

func part(object runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(object).Elem().FieldByName(name)
}
